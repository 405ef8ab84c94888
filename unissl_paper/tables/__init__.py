"""Tables of finished runs, by the name of their experiment."""

from pathlib import Path

from unissl.errors import UserError, did_you_mean
from unissl_paper.experiments import EXPERIMENTS, get_experiment
from unissl_paper.experiments.experiment import Scale
from unissl_paper.grid.plan import ALL, Selection
from unissl_paper.tables.experiment_table import experiment_tables
from unissl_paper.tables.gain import gain_tables
from unissl_paper.tables.sheet import Tables
from unissl_paper.tables.significance_table import significance_tables


def make_tables(name: str, scale: Scale, root: Path | str, selection: Selection = ALL) -> Tables:
    if name in ("gain", "significance") and selection != ALL:
        raise UserError(f"{name} reads whole tables; leave out --methods, --columns and --seeds.")
    if name == "gain":
        return gain_tables(scale, root)
    if name not in EXPERIMENTS:
        raise UserError(f"There is no table {name!r}.{did_you_mean(name, ['gain', *EXPERIMENTS])}")
    if name == "significance":
        return significance_tables(scale, root, get_experiment(name).reads)
    return experiment_tables(get_experiment(name), scale, root, selection)
