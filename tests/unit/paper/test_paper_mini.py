"""The miniature differs from the full scale in data, network and steps, and in what these force; in nothing else."""

from __future__ import annotations

from functools import cache
from typing import Any

from test_paper_configs import flat

from unissl.config import to_tree
from unissl.methods.base import Needs
from unissl.methods.registry import get_method
from unissl.run.config import config_hash, fit_to_data
from unissl.run.inputs import build_split
from unissl.splits.open_set import load_data
from unissl_paper.experiments import EXPERIMENTS
from unissl_paper.grid.plan import PlannedRun, Selection, plan

DATA = {"data.name", "data.image_size", "data.test_holdout", "data.test_limit"}
SPLIT = {"split.gamma", "split.max_count", "split.ood_data", "split.ood_count"}
OWN_MIX = {
    "split.labels_per_class",
    "split.labelled_fraction",
    "split.labelled_distribution",
    "split.gamma_l",
    "split.pool_distribution",
}
"""Of STL-10 and ImageNet-127, whose mix no small set has."""
VIEWS = {"augment.flip", "augment.pad", "augment.geometry_scale", "augment.crop"}
NETWORK = {"net.name", "net.bn_momentum", "method.num_anchors", "method.cuts"}
BUDGET = {"train.steps", "train.evaluations", "train.method_periods", "train.log_every", "train.checkpoint_every"}
SHORT = {
    "batch.labelled", "batch.unlabelled", "optim.ema_decay", "method.momentum", "method.drp_momentum",
    "method.bn_momentum", "method.queue", "method.warm_up", "method.min_votes_fraction",
}  # fmt: skip
"""Forced by a short budget, as the recipe ``short`` has it."""


@cache
def pairs() -> list[tuple[PlannedRun, PlannedRun]]:
    """Every cell at both scales, with the first seed of its experiment."""
    return [
        pair
        for one in EXPERIMENTS.values()
        for first in [Selection(seeds=one.seeds[:1])]
        for pair in zip(plan(one, "full", first), plan(one, "mini", first), strict=True)
    ]


def changed(full: PlannedRun, mini: PlannedRun) -> dict[str, tuple[Any, Any]]:
    one, other = flat(to_tree(full.config)), flat(to_tree(mini.config))
    return {key: (one.get(key), other.get(key)) for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


def test_only_data_network_and_steps_differ() -> None:
    for full, mini in pairs():
        allowed = DATA | SPLIT | VIEWS | NETWORK | BUDGET | SHORT
        if full.config.data.name in ("stl10", "imagenet127"):
            allowed |= OWN_MIX
        found = changed(full, mini)
        assert set(found) <= allowed, (full.column.name, full.variant.name, set(found) - allowed)
        assert {"data.name", "net.name", "train.steps"} <= set(found)


def test_what_a_method_changes_is_only_a_memory_or_a_size() -> None:
    """The values of the recipe, once more, so that a change of it does not slip in here."""
    wanted = {
        "sage": {"method.drp_momentum": (0.999, 0.99)},
        "freematch": {"method.momentum": (0.999, 0.99)},
        "softmatch": {"method.momentum": (0.999, 0.99)},
        "cgmatch": {"method.momentum": (0.999, 0.99), "method.queue": (1000, 16)},
        "meta-expert": {"method.bn_momentum": (0.001, 0.1)},
        "ssb": {"method.warm_up": (475 / 512, 0.5)},
        "cpg": {"method.min_votes_fraction": (None, 12 / 185)},
    }
    for full, mini in pairs():
        found = {key: value for key, value in changed(full, mini).items() if key.startswith("method.")}
        found.pop("method.cuts", None)
        if "method.num_anchors" in found:
            assert found.pop("method.num_anchors") in ((50, 25), (80, 40), (200, 100))
        assert found == wanted.get(full.config.method.name, {}), (full.column.name, full.variant.name)


def test_gammas_keep_their_order_and_every_column_its_profile() -> None:
    for name in ("table1", "table2", "table3", "failure-boundary"):
        for full, mini in pairs():
            if full.experiment.name == name and full.config.data.name not in ("stl10", "imagenet127"):
                ratio = 10 if full.config.data.name in ("cifar10", "svhn") else 1
                assert mini.config.split.gamma == full.config.split.gamma / ratio
                assert mini.config.split.pool_distribution == full.config.split.pool_distribution


def test_different_cells_of_a_table_stay_different_runs() -> None:
    for name in EXPERIMENTS:
        keys = [mini.key for _, mini in pairs() if mini.experiment.name == name]
        assert len(set(keys)) == len(keys), name


def test_key_is_what_a_run_on_digits_will_call_itself() -> None:
    """Nothing is left for the data to fill in, and every split can be made."""
    runs = [
        run
        for one in ("table1", "n10", "failure-boundary")
        for run in plan(EXPERIMENTS[one], "mini", Selection(seeds=[0]))
    ]
    dataset = load_data(runs[0].config.data, runs[0].config.split)
    for run in runs:
        fitted = fit_to_data(run.config, dataset)
        assert config_hash(fitted) == run.key
        split = build_split(fitted, dataset)
        supervised = Needs.POOL_LABELS in get_method(run.config.method.name).needs
        assert (len(split.unlabelled) == 0) == supervised
