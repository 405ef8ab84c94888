"""The exception that the command line shows as a sentence instead of a traceback."""


class UserError(Exception):
    """A mistake that the user can fix. The message is one sentence that names the fix."""


NOT_ENOUGH_MEMORY = (
    "There is not enough memory; close other programs, raise the limit (ulimit -v), or use fewer or smaller images "
    "(data.image_size)."
)
MEMORY_WORDS = (
    "failed to map segment",
    "cannot allocate memory",
    "can't allocate memory",
    "not enough memory",
    "bad_alloc",
    "can't start new thread",
    "thread creation failed",
    "resource temporarily unavailable",
    "unable to create type object",
)
"""Words of the system, of Python and of libraries that were refused memory or a thread, in lower case."""


def is_memory_shortage(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, is a lack of memory: libraries report it by many types of exceptions,
    most of them while they are imported."""
    while error is not None:
        types = (ImportError, RuntimeError, OSError, SystemError)
        if isinstance(error, MemoryError):
            return True
        if isinstance(error, types) and any(words in str(error).lower() for words in MEMORY_WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def shortened(text: str, max_length: int = 100) -> str:
    """Untrusted text for a message: printable and of bounded length."""
    cut = text if len(text) <= max_length else f"{text[: max_length - 3]}..."
    return cut if cut.isprintable() else cut.encode("unicode_escape").decode("ascii")


def did_you_mean(word: str, known: list[str]) -> str:
    """``" Did you mean 'sage'?"`` if a known word is close, otherwise the list of known words."""
    import difflib

    close = difflib.get_close_matches(shortened(word), known, n=1, cutoff=0.6)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Known: {', '.join(sorted(known))}."
