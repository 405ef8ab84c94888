"""What a change is worth: differences between two rows, paired over seeds, with 95 % intervals.

Both rows of a pair saw the same split in each seed, so the difference is taken seed by seed; the interval is Student's,
over seeds. Along an ablation each row is compared with the one before it, elsewhere SAGE with every other row.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from scipy import stats

from unissl.paper.experiments.experiment import Cell, Column, Experiment, Variant
from unissl.paper.tables.collect import READINGS, Found, is_ours
from unissl.paper.tables.sheet import HOLE, Sheet

STEPWISE = ("table4",)
"""Experiments whose rows each add one part to the row before."""
LEVEL = 0.95


def difference_sheet(experiment: Experiment, cells: Mapping[Cell, Found], columns: Sequence[Column]) -> Sheet | None:
    """None where no pair of rows has two seeds in common."""
    rows = []
    for one, other in pairs(experiment, cells):
        for reading, word in READINGS.items():
            by_column = [_by_seed(cells, one, other, column, reading) for column in columns]
            common = set.intersection(*(set(seeds) for seeds in by_column))
            overall = {seed: statistics.fmean(seeds[seed] for seeds in by_column) for seed in common}
            texts = [interval_text(list(seeds.values())) for seeds in [*by_column, overall]]
            rows.append((f"{one.title} minus {other.title}", word, *texts))
    if all(cell == HOLE for row in rows for cell in row[2:]):
        return None
    notes = (
        "Points; mean of the differences seed by seed, with its 95 % interval (Student's t over seeds). average: "
        "differences are averaged over the settings within a seed first.",
    )
    head = ("difference", "accuracy", *(column.title for column in columns), "average")
    return Sheet("Differences, paired over seeds", head, tuple(rows), notes, words=2)


def pairs(experiment: Experiment, cells: Mapping[Cell, Found]) -> list[tuple[Variant, Variant]]:
    there = [v for v in experiment.variants if any(v.name == name for name, _ in cells)]
    if experiment.name in STEPWISE:
        return list(zip(there[1:], there[:-1], strict=True)) + ([(there[-1], there[0])] if len(there) > 2 else [])
    ours = next((v for v in there if is_ours(v)), None)
    return [] if ours is None else [(ours, v) for v in there if v is not ours]


def interval_text(differences: Sequence[float]) -> str:
    """``+1.20 (-0.40 to +2.80)``."""
    if len(differences) < 2:
        return HOLE
    mean, half = interval(differences)
    return f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})"


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the width of its interval."""
    n = len(differences)
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, n - 1))
    return statistics.fmean(differences), quantile * statistics.stdev(differences) / math.sqrt(n)


def _by_seed(
    cells: Mapping[Cell, Found], one: Variant, other: Variant, column: Column, reading: str
) -> dict[int, float]:
    ours, theirs = (cells[variant.name, column.name].by_seed(reading) for variant in (one, other))
    return {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}
