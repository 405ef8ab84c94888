"""File names of any length, with any characters, and with bytes that are no characters."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

LONG_NAME = 100
NO_UTF8 = "its name is not UTF-8; written with \\xNN for undecodable bytes"
UNPRINTABLE = "its name has a line break or another unprintable character"
LONG_NAMED = f"its name is longer than {LONG_NAME} characters; some programs cannot open it"
BEYOND_ASCII = "its name has letters beyond ASCII; used as it is, but some programs misread it"


def writable(name: str) -> str:
    """A file name as it may be written to UTF-8 files: bytes that are no UTF-8, which Linux allows, become \\xNN."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def printable(name: str) -> str:
    """A file name for a message: on one line."""
    return name if name.isprintable() else repr(writable(name))


def name_issues(files: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """Issues of file names; ``files`` are as the system gives them, and are listed as they can be written."""
    issues: dict[str, list[str]] = {NO_UTF8: [], UNPRINTABLE: [], LONG_NAMED: [], BEYOND_ASCII: []}
    for file in files:
        name, listed = os.path.basename(file), writable(file)
        if writable(name) != name:
            issues[NO_UTF8].append(listed)
        elif not name.isprintable():
            issues[UNPRINTABLE].append(listed)
        elif not name.isascii():
            issues[BEYOND_ASCII].append(listed)
        if len(name) > LONG_NAME:
            issues[LONG_NAMED].append(listed)
    return {text: tuple(names) for text, names in issues.items() if names}
