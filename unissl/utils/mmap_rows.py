"""Read rows of a memory-mapped table without keeping the table in memory.

Pages that were read stay mapped, and the system maps their neighbours, too: after some thousand random rows the whole
table counts as memory of this process. So the pages are released now and then. They stay in the file cache of the
system, which all processes share.
"""

from __future__ import annotations

import mmap
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

MAX_MAPPED = 256 << 20
"""Bytes that may be mapped at a time; pages of a smaller table are never released."""
READ_AHEAD = 64 << 10
"""Bytes that one read maps at most in addition to the row."""

_mapped_bytes: WeakKeyDictionary[mmap.mmap, int] = WeakKeyDictionary()


def take_rows(table: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """``table[rows]``; releases mapped pages of a large memory-mapped table."""
    values = table[rows]
    pages = getattr(table, "_mmap", None)
    if pages is None or table.nbytes <= MAX_MAPPED or not hasattr(mmap, "MADV_DONTNEED"):
        return values
    mapped = _mapped_bytes.get(pages, 0) + len(rows) * (values[:1].nbytes + READ_AHEAD)
    if mapped >= MAX_MAPPED:
        pages.madvise(mmap.MADV_DONTNEED)
        mapped = 0
    _mapped_bytes[pages] = mapped
    return np.asarray(values)
