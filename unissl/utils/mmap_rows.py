"""Reading rows of a memory-mapped table without keeping the table in memory.

What is read through a map stays mapped, and the system maps the neighbours of a page along with it: after some thousand
random rows all of a table counts as memory of this process, however large it is. So the pages are given back now and
then. They stay in the system's file cache, which all processes share and which it empties as it needs to.
"""

from __future__ import annotations

import mmap
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

KEPT = 256 << 20
"""Bytes that may be mapped at a time; a table no larger than this is never given back."""
AROUND = 64 << 10
"""What one look brings into memory at most, beside the row itself."""

_looked_at: WeakKeyDictionary[mmap.mmap, int] = WeakKeyDictionary()


def take_rows(table: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """``table[rows]``."""
    taken = table[rows]
    pages = getattr(table, "_mmap", None)
    if pages is None or table.nbytes <= KEPT or not hasattr(mmap, "MADV_DONTNEED"):
        return taken
    seen = _looked_at.get(pages, 0) + len(rows) * (taken[:1].nbytes + AROUND)
    if seen >= KEPT:
        pages.madvise(mmap.MADV_DONTNEED)
        seen = 0
    _looked_at[pages] = seen
    return np.asarray(taken)
