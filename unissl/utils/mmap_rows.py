"""Read rows of a memory-mapped table without keeping the table in memory.

Pages that were read stay mapped, and the system maps their neighbours, too: after some thousand random rows the whole
table counts as memory of this process. So the pages are released now and then. They stay in the file cache of the
system, which all processes share.

Reading a mapped page that its file no longer has kills the process with a bus error, without a word. So the size of the
file is looked at before rows are read: a truncated file is a sentence, unless it is truncated within the same read.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from unissl.errors import UserError

MAX_MAPPED = 256 << 20
"""Bytes that may be mapped at a time; pages of a smaller table are never released."""
READ_AHEAD = 64 << 10
"""Bytes that one read maps at most in addition to the row."""

_mapped_bytes: WeakKeyDictionary[mmap.mmap, int] = WeakKeyDictionary()


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
    """``table[rows]``, or ``table[rows, views]``; releases mapped pages of a large memory-mapped table."""
    values = whole(table)[rows] if views is None else whole(table)[rows, views]
    pages = getattr(table, "_mmap", None)
    if pages is None or len(pages) <= MAX_MAPPED or not hasattr(mmap, "MADV_DONTNEED"):
        return values
    mapped = _mapped_bytes.get(pages, 0) + len(rows) * (values[:1].nbytes + READ_AHEAD)
    if mapped >= MAX_MAPPED:
        pages.madvise(mmap.MADV_DONTNEED)
        mapped = 0
    _mapped_bytes[pages] = mapped
    return np.asarray(values)


def row_blocks(table: npt.NDArray[Any], size: int) -> Iterator[npt.NDArray[Any]]:
    """All rows of a table in order, ``size`` at a time; read by :func:`take_rows`."""
    for start in range(0, len(table), size):
        yield take_rows(table, np.arange(start, min(start + size, len(table))))
