"""Set-up of a process that will train: done by the command, never by the library inside somebody else's process."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from unissl.errors import UserError
from unissl.utils.allocator import glibc, keep_freed_memory_always

MIN_ADDRESSES = 2 << 30
"""Bytes of address space. With less, OpenBLAS waits for memory for ever while it is imported, deaf to signals, and
other libraries abort."""
MADV_HUGEPAGE = 14
HUGE = 2 << 20
"""Bytes of a huge page."""


def require_current_folder() -> None:
    """Refuse a current folder that was removed: MKL ends the process in it. Call before torch is imported."""
    try:
        os.getcwd()
    except OSError:
        raise UserError("The current folder was removed; change to another with cd and repeat the command.") from None


def require_address_space() -> None:
    """Refuse a limit that the libraries cannot be loaded under. Call before numpy is imported."""
    limit = _address_limit()
    if limit is not None and limit < MIN_ADDRESSES:
        raise UserError(
            f"The limit on address space is {limit >> 20:,} MB (ulimit -v), and at least {MIN_ADDRESSES >> 20:,} MB "
            "are needed; raise it, or limit the memory of the job instead."
        )


def _address_limit() -> int | None:
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def prepare_process() -> None:
    """Keep freed memory in the process, in huge pages. Call before torch is imported."""
    libc = glibc()
    if libc is None:
        return
    keep_freed_memory_always(libc)
    if not _addresses_are_scarce():
        _prefer_huge_pages(libc, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


def _addresses_are_scarce() -> bool:
    """Whether the system hands out no more addresses than it has memory for, or a limit on them was set."""
    if _address_limit() is not None:
        return True
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    except OSError:
        return True


def _prefer_huge_pages(libc: ctypes.CDLL, size: int) -> None:
    """Ask for huge pages in the next ``size`` bytes of the heap, which saves about a twentieth of a training step.

    The bytes are reserved and given back, so the heap has grown over them, but none is touched: this takes addresses,
    not memory. Where there are no huge pages, or not as many addresses, nothing changes.
    """
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = libc.malloc(size)
    if start:
        first = -(-start // HUGE) * HUGE
        libc.madvise(first, (start + size - first) // HUGE * HUGE, MADV_HUGEPAGE)
        libc.free(start)
