"""The one exception that is shown to people as a sentence instead of a traceback."""


class UserError(Exception):
    """Something the user can put right. The message is one sentence that names the fix."""


def shortened(text: str, most: int = 100) -> str:
    """A text of somebody else's as it may stand in a sentence: printable and not endless."""
    cut = text if len(text) <= most else f"{text[: most - 3]}..."
    return cut if cut.isprintable() else cut.encode("unicode_escape").decode("ascii")


def did_you_mean(word: str, known: list[str]) -> str:
    """``" Did you mean 'sage'?"`` when something close exists, otherwise the list of what exists."""
    import difflib

    close = difflib.get_close_matches(shortened(word), known, n=1, cutoff=0.6)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Known: {', '.join(sorted(known))}."
