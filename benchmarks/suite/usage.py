"""Resources used by the running process, from the operating system."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from pathlib import Path

STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Usage:
    """Memory in bytes, now and at its peak; page faults and seconds since the process started.

    ``anonymous`` is memory that is not a mapped file; it does not count a memory-mapped pool.
    """

    resident: int
    anonymous: int
    peak: int
    faults: int
    user: float
    system: float


def usage() -> Usage:
    used = resource.getrusage(resource.RUSAGE_SELF)
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    memory = parse_status(STATUS.read_text(encoding="utf-8")) if STATUS.exists() else {}
    return Usage(
        resident=memory.get("VmRSS", peak),
        anonymous=memory.get("RssAnon", peak),
        peak=memory.get("VmHWM", peak),  # ru_maxrss outlives exec, so a child would show its parent's
        faults=used.ru_minflt + used.ru_majflt,
        user=used.ru_utime,
        system=used.ru_stime,
    )


def parse_status(text: str) -> dict[str, int]:
    """The lines of /proc/self/status that are in kB, in bytes."""
    lines = (line.split() for line in text.splitlines())
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if len(words) == 3 and words[2] == "kB"}
