"""How long a grid will take: from runs of the same scale and method that are finished, else from a stated rate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from unissl.paper.grid.plan import Outcome, PlannedRun

STATED_MINI = 25.0
"""Seconds of a miniature run on one core, start of the process included."""
START = 6.0
"""Seconds that a process takes around the training that its summary tells of."""
HOUR = 3600.0
STATED_FULL = {"fixmatch": 18.5, "cgmatch": 29.5, "meta-expert": 19.2, "cpg": 22.6, "sage": 18.8}
"""Hours of a full run on the authors' RTX 4090; others are taken to be as long as FixMatch."""


@dataclass(frozen=True)
class Estimate:
    seconds: float
    measured: int
    """Finished runs that it rests on; 0 for a stated rate."""

    def __str__(self) -> str:
        basis = f"from {self.measured} finished runs" if self.measured else "by a stated rate, not measured here"
        return f"about {duration(self.seconds)} ({basis})"


def estimate(todo: Iterable[PlannedRun], finished: Iterable[Outcome], jobs: int) -> Estimate:
    """Time for ``todo`` with ``jobs`` runs side by side."""
    by_method: defaultdict[str, list[float]] = defaultdict(list)
    for outcome in finished:
        if outcome.summary is not None:
            by_method[outcome.run.config.method.name].append(float(outcome.summary["seconds"]) + START)
    total, used = 0.0, set()
    for run in todo:
        method = run.config.method.name
        if by_method[method]:
            used.add(method)
            total += median(by_method[method])
        elif run.scale == "mini":
            total += STATED_MINI
        else:
            total += HOUR * STATED_FULL.get(method, STATED_FULL["fixmatch"])
    return Estimate(total / jobs, sum(len(by_method[method]) for method in used))


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / HOUR:.0f} h" if seconds < 72 * HOUR else f"{seconds / HOUR / 24:.0f} days"
