"""Read rows of a memory-mapped table without keeping the table in memory.

Pages that were read stay mapped, and the system maps their neighbours, too: after some thousand random rows the whole
table counts as memory of this process. So the pages are released now and then. They stay in the file cache of the
system, which all processes share.

Reading a mapped page that its file no longer has kills the process with a bus error, without a word. So the size of the
file is looked at before rows are read: a truncated file is a sentence, unless it is truncated within the same read.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from unissl.errors import UserError

MAX_MAPPED = 256 << 20
"""Bytes of all tables together that may be mapped at a time."""
READ_AHEAD = 2 << 20
"""Bytes that reading one row may map in addition: a huge page, in which the system may keep a file."""

_mapped_bytes: WeakKeyDictionary[mmap.mmap, int] = WeakKeyDictionary()
_lock = threading.Lock()


def whole(table: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``table`` itself; an error if it is memory-mapped and its file was truncated since."""
    pages = getattr(table, "_mmap", None)
    if pages is not None and pages.size() < len(pages):
        raise UserError(
            f"{getattr(table, 'filename', 'A mapped file')} was truncated while it was in use; repeat the command, "
            "with --resume if a run had begun, and it is written again."
        )
    return table


def take_rows(
    table: npt.NDArray[Any], rows: npt.NDArray[np.int64], views: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[Any]:
    """``table[rows]``, or ``table[rows, views]``; the pages of memory-mapped tables are released now and then."""
    index = (rows,) if views is None else (rows, views)
    pages = getattr(table, "_mmap", None)
    if pages is None:
        return np.asarray(table[index])
    shape = table.shape[len(index) :]
    values = np.empty((len(rows), *shape), table.dtype)
    row_bytes = values.itemsize * int(np.prod(shape)) + READ_AHEAD
    size = max(1, MAX_MAPPED // row_bytes)
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        values[part] = whole(table)[tuple(axis[part] for axis in index)]
        _count_mapped(pages, len(values[part]) * row_bytes)
    return values


def take_row(table: npt.NDArray[Any], row: int) -> npt.NDArray[Any]:
    """``table[row]``, read by :func:`take_rows`."""
    return np.asarray(take_rows(table, np.array([row]))[0])


def _count_mapped(pages: mmap.mmap, read: int) -> None:
    """Add the bytes of a read, and release the pages of all tables where they are too many together."""
    with _lock:
        _mapped_bytes[pages] = min(len(pages), _mapped_bytes.get(pages, 0) + read)
        if sum(_mapped_bytes.values()) < MAX_MAPPED or not hasattr(mmap, "MADV_DONTNEED"):
            return
        for table in _mapped_bytes:
            table.madvise(mmap.MADV_DONTNEED)
            _mapped_bytes[table] = 0


def row_blocks(table: npt.NDArray[Any], size: int) -> Iterator[npt.NDArray[Any]]:
    """All rows of a table in order, ``size`` at a time; read by :func:`take_rows`."""
    for start in range(0, len(table), size):
        yield take_rows(table, np.arange(start, min(start + size, len(table))))
