"""Where a grid stands before it is started: what is done, what is left, what is in the way."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unissl.paper.grid.plan import Outcome, PlannedRun, Scale, read_outcome
from unissl.paper.grid.storage import ORIGIN, is_url
from unissl.paper.grid.time_estimate import Estimate, estimate
from unissl.utils.bounded_io import parse_json, read_text


@dataclass(frozen=True)
class Survey:
    """``outcomes`` has one entry per different run: cells that resolve to the same configuration share it."""

    outcomes: tuple[Outcome, ...]
    cells: int
    outdated: int
    """Finished runs of the same cells with another configuration: the grid was edited since."""

    @property
    def todo(self) -> list[PlannedRun]:
        return [outcome.run for outcome in self.outcomes if outcome.state != "done"]

    def count(self, state: str) -> int:
        return sum(outcome.state == state for outcome in self.outcomes)

    def estimate(self, jobs: int) -> Estimate:
        return estimate(self.todo, self.outcomes, jobs)

    def lines(self, jobs: int) -> list[str]:
        """What a person should know before the start."""
        states = Counter(outcome.state for outcome in self.outcomes)
        shared = f" ({self.cells} cells)" if self.cells != len(self.outcomes) else ""
        parts = [f"{len(self.outcomes)} runs{shared}", f"{states['done']} done already"]
        parts += [f"{states[state]} {state}" for state in ("cut off", "failed") if states[state]]
        lines = [", ".join(parts)]
        if self.todo:
            beside = f" with {jobs} side by side" if jobs > 1 else ""
            lines.append(f"{len(self.todo)} to do: {self.estimate(jobs)}{beside}")
        if self.outdated:
            lines.append(
                f"{self.outdated} finished runs of these cells have another configuration than the grid has now; they "
                "stay as they are and are not counted"
            )
        return lines


def survey(runs: Sequence[PlannedRun], root: Path | str) -> Survey:
    different = {run.key: run for run in runs}
    outcomes = tuple(read_outcome(run, root) for run in different.values())
    return Survey(outcomes, len(runs), _outdated(runs, root))


def _outdated(runs: Sequence[PlannedRun], root: Path | str) -> int:
    if is_url(root) or not runs:
        return 0
    scale: Scale = runs[0].scale
    wanted = {run.name for run in runs}
    cells = {json.dumps(run.origin, sort_keys=True) for run in runs}
    count = 0
    for file in (Path(root) / scale).glob(f"*/{ORIGIN}"):
        if file.parent.name in wanted or not (file.parent / "summary.json").exists():
            continue
        try:
            count += json.dumps(parse_json(read_text(file)), sort_keys=True) in cells
        except (OSError, ValueError):
            continue  # somebody else's file
    return count
