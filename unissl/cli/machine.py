"""Set-up of a process that will train: done by the command, never by the library inside somebody else's process."""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
LARGE = 1 << 30


def prepare_process() -> None:
    """Keep freed memory in the process. Call before the first tensor.

    glibc maps every large tensor anew and gives it back at once, and the page faults of that take up to half of a
    training step on a CPU. Without mmap and trimming the same pages serve again.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, LARGE)
    libc.mallopt(M_TOP_PAD, 64 << 20)
