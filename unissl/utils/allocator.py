"""Settings of glibc's allocator: memory that tensors free is kept for the next ones.

glibc maps new memory for every large tensor and unmaps it at once, and the page faults of that cost up to half of a
training step on a CPU. Without mmap and trimming the same pages serve again.
"""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -2, -3, -4
NEVER = -1
TOP_PAD = 64 << 20
"""Bytes by which the heap grows at once."""
KEPT = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: NEVER, M_TOP_PAD: TOP_PAD}
LARGEST_THRESHOLD = 32 << 20
RELEASED = {
    M_MMAP_MAX: 65536,
    M_MMAP_THRESHOLD: LARGEST_THRESHOLD,
    M_TRIM_THRESHOLD: 2 * LARGEST_THRESHOLD,
    M_TOP_PAD: 128 << 10,
}
"""glibc's defaults, with the thresholds that it reaches by itself in a process that frees large blocks."""

_lock = threading.Lock()
_users = 0
"""Blocks that keep freed memory now."""


def glibc() -> ctypes.CDLL | None:
    """The C library of this process, where it is glibc."""
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


def keep_freed_memory_always(libc: ctypes.CDLL) -> None:
    """Keep freed memory until the process ends: for the command, which owns its process."""
    global _users
    _users += 1  # never the last one to leave
    _set(libc, KEPT)


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep freed memory inside the block, and give it back to the system afterwards: for a library call in somebody
    else's process. May be nested, and entered by several threads."""
    global _users
    libc = glibc()
    if libc is None:
        yield
        return
    with _lock:
        _users += 1
        if _users == 1:
            _set(libc, KEPT)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _set(libc, RELEASED)
                libc.malloc_trim(0)


def release_freed_memory() -> None:
    """Give memory that is kept but unused back to the system: after a stage that needs more than those that follow."""
    libc = glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _set(libc: ctypes.CDLL, options: dict[int, int]) -> None:
    for option, value in options.items():
        libc.mallopt(option, value)
