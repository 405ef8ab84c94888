"""The average gain over data sets, from the printed numbers and from our runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from unissl.paper.experiments.experiment import Cell, Experiment
from unissl.paper.experiments.registry import get_experiment
from unissl.paper.grid.plan import Scale
from unissl.paper.tables.collect import READINGS, gather, mean_and_sd
from unissl.paper.tables.gain import RULE, Gain, average, gains
from unissl.paper.tables.sheet import Sheet, Tables, plain_rows

READS = ("table1", "table2", "table3")
HEAD = ("data set", "SAGE", "best baseline", "its mean", "gain")


def gain_tables(scale: Scale, root: Path | str) -> Tables:
    """Printed first; ours where SAGE and a baseline are complete on a data set."""
    experiments = [get_experiment(name) for name in READS]
    printed = [{cell: number.mean for cell, number in experiment.printed.items()} for experiment in experiments]
    parts = {"printed": _over(experiments, printed)}
    found = [gather(experiment, scale, root) for experiment in experiments]
    for reading in READINGS:
        taken = [
            {
                cell: pair[0]
                for cell, f in cells.items()
                if (pair := mean_and_sd(f.by_seed(reading).values())) is not None
            }
            for cells in found
        ]
        parts[f"{scale} scale, accuracy: {reading}"] = _over(experiments, taken)
    sheets = [_sheet(title, members) for title, members in parts.items() if members]
    rows = [(title, g.data, g.ours, g.rival, g.theirs, g.points) for title, members in parts.items() for g in members]
    return Tables(tuple(sheets), Sheet("gain", ("source", *HEAD), plain_rows(rows), words=2))


def _over(experiments: Sequence[Experiment], means: Sequence[Mapping[Cell, float]]) -> list[Gain]:
    return [gain for one, values in zip(experiments, means, strict=True) for gain in gains(one, values)]


def _sheet(title: str, found: Sequence[Gain]) -> Sheet:
    rows = [(g.data, f"{g.ours:.2f}", g.rival, f"{g.theirs:.2f}", f"{g.points:+.2f}") for g in found]
    rows.append((f"average over {len(found)}", "", "", "", f"{average(found):+.2f}"))
    return Sheet(f"Average gain of SAGE, {title}", HEAD, tuple(rows), (RULE,))
