"""The number of usable CPU cores."""

from __future__ import annotations

import os


def cpu_count() -> int:
    """Cores that this process may use; a batch system, a cpuset or taskset may allow fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
