"""The one exception that is shown to people as a sentence instead of a traceback."""


class UserError(Exception):
    """Something the user can put right. The message is one sentence that names the fix."""


def did_you_mean(word: str, known: list[str]) -> str:
    """``" Did you mean 'sage'?"`` when something close exists, otherwise the list of what exists."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Known: {', '.join(sorted(known))}."
