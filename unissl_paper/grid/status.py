"""State of a grid before it starts: runs that are done and left, and the time that they take."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from unissl.utils.bounded_io import parse_json, read_text
from unissl_paper.grid.plan import PlannedRun
from unissl_paper.grid.storage import ORIGIN, RunStatus, is_url

START_SECONDS = 6.0
"""Start and end of a process, which the seconds of a summary do not include."""
HOUR = 3600.0
MINI_SECONDS = 25.0
"""Of a miniature run on one core, start of the process included."""
MID_HOURS = 1.0
"""Of a run of the mid scale on one core."""
FULL_HOURS = {"fixmatch": 18.5, "cgmatch": 29.5, "meta-expert": 19.2, "cpg": 22.6, "sage": 18.8}
"""Of a full run on the authors' RTX 4090; other methods are assumed to take as long as FixMatch."""


@dataclass(frozen=True)
class GridStatus:
    """``runs`` has one entry per different run: cells with the same configuration share it."""

    runs: tuple[tuple[PlannedRun, RunStatus], ...]
    cells: int
    outdated: int
    """Finished runs of the same cells with another configuration: the grid was edited since."""

    @property
    def todo(self) -> list[PlannedRun]:
        return [run for run, status in self.runs if status.state != "done"]

    def count(self, state: str) -> int:
        return sum(status.state == state for _, status in self.runs)

    def lines(self, jobs: int) -> list[str]:
        """Numbers of runs and the estimated time, for people."""
        shared = f" ({self.cells} cells)" if self.cells != len(self.runs) else ""
        parts = [f"{len(self.runs)} runs{shared}", f"{self.count('done')} done already"]
        parts += [f"{self.count(state)} {state}" for state in ("interrupted", "failed") if self.count(state)]
        lines = [", ".join(parts)]
        if self.todo:
            parallel = f" with {jobs} in parallel" if jobs > 1 else ""
            lines.append(f"{len(self.todo)} to do: {estimate_time(self.todo, self.runs, jobs)}{parallel}")
        if self.outdated:
            lines.append(
                f"{self.outdated} finished runs of these cells have another configuration than the grid now; they "
                "are kept and not counted"
            )
        return lines


def grid_status(runs: Sequence[PlannedRun], root: Path | str) -> GridStatus:
    different = {run.key: run for run in runs}
    pairs = tuple((run, run.status(root)) for run in different.values())
    return GridStatus(pairs, len(runs), _count_outdated(runs, root))


def _count_outdated(runs: Sequence[PlannedRun], root: Path | str) -> int:
    if is_url(root) or not runs:
        return 0
    names = {run.name for run in runs}
    cells = {json.dumps(run.origin, sort_keys=True) for run in runs}
    count = 0
    for file in (Path(root) / runs[0].scale).glob(f"*/{ORIGIN}"):
        if file.parent.name in names or not (file.parent / "summary.json").exists():
            continue
        try:
            count += json.dumps(parse_json(read_text(file)), sort_keys=True) in cells
        except (OSError, ValueError):
            continue  # a file of another program
    return count


@dataclass(frozen=True)
class TimeEstimate:
    seconds: float
    measured: int
    """Number of finished runs that it is based on; 0 for a stated rate."""

    def __str__(self) -> str:
        basis = f"from {self.measured} finished runs" if self.measured else "by a stated rate, not measured here"
        return f"about {format_duration(self.seconds)} ({basis})"


def estimate_time(todo: Iterable[PlannedRun], runs: Iterable[tuple[PlannedRun, RunStatus]], jobs: int) -> TimeEstimate:
    """Time for ``todo`` with ``jobs`` runs in parallel: from finished runs of the same method, else a stated rate."""
    by_method: defaultdict[str, list[float]] = defaultdict(list)
    for run, status in runs:
        if status.summary is not None:
            by_method[run.config.method.name].append(float(status.summary["seconds"]) + START_SECONDS)
    total, used = 0.0, set()
    for run in todo:
        method = run.config.method.name
        if by_method[method]:
            used.add(method)
            total += median(by_method[method])
        elif run.scale == "mini":
            total += MINI_SECONDS
        else:
            hours = MID_HOURS if run.scale == "mid" else FULL_HOURS.get(method, FULL_HOURS["fixmatch"])
            total += HOUR * hours
    return TimeEstimate(total / jobs, sum(len(by_method[method]) for method in used))


def format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / HOUR:.0f} h" if seconds < 72 * HOUR else f"{seconds / HOUR / 24:.0f} days"
