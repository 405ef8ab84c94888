"""The exception that the command line shows as a sentence instead of a traceback."""


class UserError(Exception):
    """A mistake that the user can fix. The message is one sentence that names the fix."""


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
