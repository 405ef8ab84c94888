"""What the finished runs of an experiment say, cell by cell; and why a number is missing."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unissl.paper.experiments.experiment import Cell, Column, Experiment, Variant
from unissl.paper.grid.plan import ALL, Part, Scale, plan, read_outcome

READINGS = {"last": "last", "mean_last_20": "mean of last 20", "best": "best"}
"""The three ways to take one accuracy from a run's evaluations, and what tables call them. The paper prints the best,
which is chosen on the test images and therefore optimistic."""
PAPERS = "best"


@dataclass
class Found:
    """Summaries by seed, and reasons by seed where there is none."""

    summaries: dict[int, dict[str, Any]] = field(default_factory=dict)
    holes: dict[int, str] = field(default_factory=dict)

    def by_seed(self, reading: str) -> dict[int, float]:
        """Accuracy in per cent, or the AUROC of the outlier score."""
        if reading == "auroc":
            return {seed: 100 * s["auroc"] for seed, s in self.summaries.items() if "auroc" in s}
        return {seed: 100 * s["accuracy"][reading] for seed, s in self.summaries.items() if "accuracy" in s}


def gather(experiment: Experiment, scale: Scale, root: Path | str, part: Part = ALL) -> dict[Cell, Found]:
    """Every planned cell with what its folders hold."""
    cells: dict[Cell, Found] = {}
    for run in plan(experiment, scale, part):
        found = cells.setdefault((run.variant.name, run.setting.name), Found())
        outcome = read_outcome(run, root)
        if outcome.state == "done" and outcome.summary is not None:
            found.summaries[run.seed] = outcome.summary
        else:
            found.holes[run.seed] = f"{outcome.state}{'' if outcome.reason is None else f': {outcome.reason}'}"
    return cells


def mean_and_sd(values: Collection[float]) -> tuple[float, float | None] | None:
    """Mean and sample standard deviation (n - 1); no deviation of one value, nothing of none."""
    if not values:
        return None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def is_ours(variant: Variant) -> bool:
    return variant.method == "sage"


def is_supervised(variant: Variant) -> bool:
    """The references that see the true labels of the pool: not competitors."""
    return variant.method in ("fully-supervised", "logit-adjust")


def data_of(setting: Column) -> str:
    """The data set of a setting at full size."""
    return str(setting.tree.get("data", {}).get("name", ""))
