"""The exception that the command line shows as a sentence instead of a traceback, and untrusted text in messages."""

from __future__ import annotations

import re

MAX_SENTENCE = 500
"""Characters of a message, whatever a file holds."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal obeys, or that reverse the order of the text after them; and bytes that are no UTF-8."""


class UserError(Exception):
    """A mistake that the user can fix. The message is one sentence that names the fix.

    It is stored on one line, without control characters, and cut in the middle if it is longer than
    :data:`MAX_SENTENCE`: what is wrong is at its start and the fix at its end.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_sentence(message))


def visible(text: str, keep: str = "") -> str:
    """Text with control characters written as ``\\x1b`` or ``\\u202e``; those in ``keep`` stay."""

    def escaped(match: re.Match[str]) -> str:
        character = match[0]
        return character if character in keep else ascii(character)[1:-1]

    return _CONTROL.sub(escaped, text)


def one_sentence(message: str) -> str:
    """A message on one line, of bounded length and without control characters."""
    text = visible(" ".join(line.strip() for line in message.splitlines()))
    if len(text) <= MAX_SENTENCE:
        return text
    kept = (MAX_SENTENCE - 5) // 2
    return f"{text[:kept]} ... {text[-kept:]}"


NOT_ENOUGH_MEMORY = (
    "There is not enough memory; close other programs, raise the limit (ulimit -v or -d), or use fewer or smaller "
    "images (data.image_size)."
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
    "could not create a primitive",
)
"""Words of the system, of Python and of libraries that were refused memory or a thread, in lower case."""


def names_memory_shortage(message: str) -> bool:
    text = message.lower().replace("could not create a primitive descriptor", "")  # of what oneDNN does not support
    return any(words in text for words in MEMORY_WORDS)


def is_memory_shortage(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, is a lack of memory: libraries report it by many types of exceptions,
    most of them while they are imported."""
    while error is not None:
        types = (ImportError, RuntimeError, OSError, SystemError)
        if isinstance(error, MemoryError):
            return True
        if isinstance(error, types) and names_memory_shortage(str(error)):
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
