"""How many cores there are to work on."""

from __future__ import annotations

import os


def cpu_count() -> int:
    """Those that this process may use: a batch system, a cpuset or taskset may leave it fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
