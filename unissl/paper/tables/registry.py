"""The tables of an experiment by name."""

from __future__ import annotations

from pathlib import Path

from unissl.errors import UserError, did_you_mean
from unissl.paper.experiments.registry import EXPERIMENTS, get_experiment
from unissl.paper.grid.plan import ALL, Part, Scale
from unissl.paper.tables.experiment_table import experiment_tables
from unissl.paper.tables.gain_table import gain_tables
from unissl.paper.tables.sheet import Tables
from unissl.paper.tables.significance_table import significance_tables

COUNTED = ("gain", "significance")
"""Tables that are computed from those of other experiments."""


def make_tables(name: str, scale: Scale, root: Path | str, part: Part = ALL) -> Tables:
    if name in COUNTED and part != ALL:
        raise UserError(f"{name} counts all of the tables; leave out --only, --settings and --seeds.")
    if name == "gain":
        return gain_tables(scale, root)
    if name not in EXPERIMENTS:
        raise UserError(f"There is no table {name!r}.{did_you_mean(name, ['gain', *EXPERIMENTS])}")
    if name == "significance":
        return significance_tables(scale, root, get_experiment(name).reads)
    return experiment_tables(get_experiment(name), scale, root, part)
