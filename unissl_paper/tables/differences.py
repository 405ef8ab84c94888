"""Differences between two rows, paired over seeds, with 95 % intervals.

Both rows of a pair have the same split in each seed, so the difference is taken seed by seed; the interval is Student's
over seeds. In an ablation each row is compared with the one before it, elsewhere SAGE with every other row.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from scipy import stats

from unissl_paper.experiments.experiment import Cell, Column, Experiment, Variant
from unissl_paper.tables.collect import METRICS, CellResult
from unissl_paper.tables.sheet import EMPTY, Sheet

STEPWISE = ("table4",)
"""Experiments whose rows each add one part to the row before."""
LEVEL = 0.95


def difference_sheet(
    experiment: Experiment, cells: Mapping[Cell, CellResult], columns: Sequence[Column]
) -> Sheet | None:
    """None if no pair of rows has two seeds in common."""
    rows = []
    for one, other in row_pairs(experiment, cells):
        for metric, title in METRICS.items():
            by_column = [_differences(cells, one, other, column, metric) for column in columns]
            common = set.intersection(*(set(by_seed) for by_seed in by_column))
            overall = {seed: statistics.fmean(by_seed[seed] for by_seed in by_column) for seed in common}
            texts = [interval_text(list(by_seed.values())) for by_seed in [*by_column, overall]]
            rows.append((f"{one.title} minus {other.title}", title, *texts))
    if all(cell == EMPTY for row in rows for cell in row[2:]):
        return None
    notes = (
        "Points; mean of the differences seed by seed, with its 95 % interval (Student's t over seeds). average: "
        "differences are averaged over the columns within a seed first.",
    )
    head = ("difference", "accuracy", *(column.title for column in columns), "average")
    return Sheet("Differences, paired over seeds", head, tuple(rows), notes, words=2)


def row_pairs(experiment: Experiment, cells: Mapping[Cell, CellResult]) -> list[tuple[Variant, Variant]]:
    variants = [v for v in experiment.variants if any(v.name == name for name, _ in cells)]
    if experiment.name in STEPWISE:
        steps = list(zip(variants[1:], variants[:-1], strict=True))
        return steps + ([(variants[-1], variants[0])] if len(variants) > 2 else [])
    sage = next((v for v in variants if v.is_sage), None)
    return [] if sage is None else [(sage, v) for v in variants if v is not sage]


def interval_text(differences: Sequence[float]) -> str:
    """``+1.20 (-0.40 to +2.80)``."""
    if len(differences) < 2:
        return EMPTY
    mean, half = interval(differences)
    return f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})"


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the width of its interval."""
    n = len(differences)
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, n - 1))
    return statistics.fmean(differences), quantile * statistics.stdev(differences) / math.sqrt(n)


def _differences(
    cells: Mapping[Cell, CellResult], one: Variant, other: Variant, column: Column, metric: str
) -> dict[int, float]:
    a, b = (cells[variant.name, column.name].by_seed(metric) for variant in (one, other))
    return {seed: a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())}
