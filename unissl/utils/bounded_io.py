"""Read text and JSON from untrusted files, with bounded length and one kind of error; pipes are not waited for.

The parsers of the standard library raise several types for bad input (``RecursionError`` for brackets within brackets,
plain ``ValueError`` for numbers of thousands of digits), and read whatever a file holds into memory first.
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

MAX_BYTES = 32 << 20
"""Size of a text; the largest of a run or a data set has a third of it."""
MAX_SPLIT_BYTES = 128 << 20
"""Size of texts with a number or a name for each image: the split of ten million images has two thirds of it."""
MAX_LISTS = 1_000_000
"""Lists and tables in a JSON text, which take 20 times the memory of the text."""
MAX_VALUES = 20_000_000
"""Values in a JSON text: twice the rows of the largest split."""
BLOCK = 1 << 20
MAX_DEPTH = 32
"""Nesting depth, several times that of any file that a run writes."""


class Bytes(Protocol):
    """An open file or a decompressor."""

    def read(self, size: int, /) -> bytes: ...


class Malformed(ValueError):
    """What is wrong with a text, in a few words."""


def open_file(path: str | Path) -> io.BufferedReader:
    """A regular file, opened for reading. Opening a pipe would wait for ever for its other end, so it is an OSError."""
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    # Looked at when it is open, since it may be exchanged before. Without O_NONBLOCK opening a pipe would wait already.
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "not a regular file", path)


@contextmanager
def regular_path(path: str | Path) -> Iterator[str]:
    """A path for libraries that open files themselves, at which they find the regular file that was opened here."""
    with open_file(path) as file:
        opened = f"/proc/self/fd/{file.fileno()}"
        yield opened if os.path.exists(opened) else os.fspath(path)


def read_text(path: Path, max_bytes: int = MAX_BYTES, *, pipes: bool = False) -> str:
    """The UTF-8 text of a file; :class:`Malformed` if it is not UTF-8 or longer than ``max_bytes``.

    ``pipes`` is for files that the user names, which may be ``<(command)`` of a shell.
    """
    with path.open("rb") if pipes else open_file(path) as file:
        content = read_at_most(file, max_bytes + 1)
    if len(content) > max_bytes:
        raise Malformed(f"longer than {max_bytes >> 20} MB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise Malformed("not UTF-8 text") from None


def read_at_most(file: Bytes, max_bytes: int) -> bytes:
    """The next ``max_bytes`` bytes or all there are, read in blocks: one large read would allocate the whole length."""
    content = bytearray()
    while len(content) < max_bytes and (block := file.read(min(BLOCK, max_bytes - len(content)))):
        content += block
    return bytes(content)


def parse_json(text: str | bytes) -> Any:
    """The value; :class:`Malformed` if it is not JSON, nested too deep, too large in memory, or has numbers of
    thousands of digits."""
    reject_many_values(text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise Malformed(reason) from None
    reject_deep_nesting(value)
    return value


def reject_many_values(text: str | bytes) -> None:
    """:class:`Malformed` if JSON of this text would take many times its size: counted before anything is parsed."""
    commas, lists, tables = (text.count(mark) if isinstance(text, str) else text.count(mark.encode()) for mark in ",[{")
    if lists + tables > MAX_LISTS or commas > MAX_VALUES:
        raise Malformed(f"of more than {MAX_LISTS:,} lists or {MAX_VALUES:,} values")


def reject_surrogates(value: Any) -> None:
    """:class:`Malformed` for text with lone surrogates, which JSON can hold but no UTF-8 file."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise Malformed("text that is not Unicode") from None


def reject_deep_nesting(value: Any) -> None:
    """:class:`Malformed` for lists and tables nested deeper than ``MAX_DEPTH``."""
    level = [value] if isinstance(value, Mapping | list) else []
    for _ in range(MAX_DEPTH):
        inside = chain.from_iterable(outer.values() if isinstance(outer, Mapping) else outer for outer in level)
        level = [inner for inner in inside if isinstance(inner, Mapping | list)]
        if not level:
            return
    raise Malformed("nested too deep")
