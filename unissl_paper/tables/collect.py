"""Results of the finished runs of an experiment by cell, and the reasons for missing ones."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unissl_paper.experiments.experiment import Cell, Experiment, Scale
from unissl_paper.grid.plan import ALL, Selection, runs_to_show

METRICS = {"last": "last", "mean_last_20": "mean of last 20", "best": "best"}
"""Three accuracies of a run's evaluations, and their names in tables. The paper prints the best, which is chosen on the
test images and therefore optimistic."""
PAPER_METRIC = "best"


@dataclass
class CellResult:
    """Summaries by seed; reasons by seed for missing runs."""

    summaries: dict[int, dict[str, Any]] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)

    def by_seed(self, metric: str) -> dict[int, float]:
        """Accuracy in per cent, or the AUROC of the outlier score."""
        if metric == "auroc":
            return {seed: 100 * s["auroc"] for seed, s in self.summaries.items() if "auroc" in s}
        return {seed: 100 * s["accuracy"][metric] for seed, s in self.summaries.items() if "accuracy" in s}


def collect_results(
    experiment: Experiment, scale: Scale, root: Path | str, selection: Selection = ALL
) -> dict[Cell, CellResult]:
    """The results of every selected cell."""
    cells: dict[Cell, CellResult] = {}
    for run, status in runs_to_show(experiment, scale, root, selection):
        cell = cells.setdefault((run.variant.name, run.column.name), CellResult())
        if status.state == "done" and status.summary is not None:
            cell.summaries[run.seed] = status.summary
        else:
            cell.missing[run.seed] = f"{status.state}{'' if status.reason is None else f': {status.reason}'}"
    return cells


def mean_and_sd(values: Collection[float]) -> tuple[float, float | None] | None:
    """Mean and sample standard deviation (n - 1); no deviation of one value, None without values."""
    if not values:
        return None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def cell_means(cells: Mapping[Cell, CellResult], metric: str) -> dict[Cell, float]:
    """Mean over seeds of every cell that has results."""
    values = {cell: list(result.by_seed(metric).values()) for cell, result in cells.items()}
    return {cell: statistics.fmean(numbers) for cell, numbers in values.items() if numbers}
