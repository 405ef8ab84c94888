"""The paper's experiments: rows, columns and printed numbers, by name and in the order of the paper; ours come last."""

from unissl.errors import UserError, did_you_mean
from unissl_paper.experiments.experiment import Experiment
from unissl_paper.experiments.further import DERIVED, FURTHER
from unissl_paper.experiments.main_tables import TABLES
from unissl_paper.experiments.sensitivity import OURS, SENSITIVITY

EXPERIMENTS: dict[str, Experiment] = {one.name: one for one in (*TABLES, *SENSITIVITY, *FURTHER, *DERIVED, *OURS)}


def get_experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise UserError(f"There is no experiment {name!r}.{did_you_mean(name, list(EXPERIMENTS))}")
    return EXPERIMENTS[name]
