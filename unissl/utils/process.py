"""Set-up of a process that will train: done by the command, never by the library inside somebody else's process."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from unissl.errors import UserError
from unissl.utils.allocator import glibc, keep_freed_memory_always
from unissl.utils.cpu import cpu_count

MIN_ADDRESSES, MIN_DATA = 2816 << 20, 1792 << 20
"""Bytes of address space (ulimit -v) and of data (ulimit -d). With less, OpenBLAS waits for memory for ever, deaf to
signals, and other libraries abort."""
PER_THREAD = 128 << 20
"""Bytes that a thread needs besides, for its stack, its heap and the buffers of OpenBLAS."""
LIBRARY_VARIABLES = ("ATEN_", "JOBLIB_", "KMP_", "LOKY_", "MKL_", "NUMBA_", "OMP_", "SKLEARN_", "TORCH")
"""Starts of the names of environment variables that libraries read."""
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
    """Refuse a limit that the libraries cannot work under. Call before numpy is imported."""
    threads = _library_threads()
    for name, flag, what, minimum in (
        ("RLIMIT_AS", "-v", "address space", MIN_ADDRESSES),
        ("RLIMIT_DATA", "-d", "data memory", MIN_DATA),
    ):
        limit, needed = _limit(name), minimum + threads * PER_THREAD
        if limit is not None and limit < needed:
            raise UserError(
                f"The limit on {what} is {limit >> 20:,} MB (ulimit {flag}), and at least {needed >> 20:,} MB are "
                f"needed with {threads} threads; raise it, or limit the memory of the job instead."
            )


def _library_threads() -> int:
    """Threads that OpenBLAS and OpenMP start: as many as cores, unless $OMP_NUM_THREADS says fewer."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").strip()
    return min(cpu_count(), int(wanted)) if wanted.isdecimal() and int(wanted) else cpu_count()


def _limit(name: str) -> int | None:
    """A limit of the system in bytes, None if there is none."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return None
    limit = resource.getrlimit(getattr(resource, name))[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _limits_are_set() -> bool:
    return _limit("RLIMIT_AS") is not None or _limit("RLIMIT_DATA") is not None


def misread_variable(error: BaseException) -> str | None:
    """The environment variable of a library that its error quotes by name or value, if there is one; numbers are read
    by all."""
    message = str(error)
    for name, value in sorted(os.environ.items()):
        if name.startswith(LIBRARY_VARIABLES) and (name in message or repr(value) in message) and not value.isdecimal():
            return name
    return None


def prepare_process() -> None:
    """Keep freed memory in the process, in huge pages. Call before torch is imported."""
    if _limits_are_set():
        _reserve_blas_buffers()
    libc = glibc()
    if libc is None:
        return
    keep_freed_memory_always(libc)
    if not _addresses_are_scarce():
        _prefer_huge_pages(libc, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


def _reserve_blas_buffers() -> None:
    """Let both copies of OpenBLAS take their buffers, which they keep, while there is memory: at a limit they would
    wait for it for ever, at the end of a training."""
    import numpy as np
    from scipy.linalg import svd

    matrix = np.random.RandomState(0).rand(256, 256)
    np.linalg.svd(matrix @ matrix)
    svd(matrix @ matrix)


def _addresses_are_scarce() -> bool:
    """Whether the system hands out no more addresses than it has memory for, or a limit on them was set."""
    if _limits_are_set():
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
