"""From a cell of an experiment to a configuration with nothing left open, at full scale."""

from __future__ import annotations

from unissl.autoconfig.recipes import paper
from unissl.config import ConfigTree, merge, to_tree
from unissl.methods.base import Needs
from unissl.methods.registry import get_method
from unissl.paper.experiments.columns import CLASSES
from unissl.paper.experiments.experiment import Column, Variant
from unissl.run.config import RunConfig, build_config

BY_DATA: dict[tuple[str, str], ConfigTree] = {
    ("cgmatch", "svhn"): {"method": {"threshold_min": 0.9, "threshold_max": 0.95}},
}
"""What a method was published to do differently on one data set."""
RECORDED: ConfigTree = {"train": {"diagnostics": True}}
"""Every run keeps what the figures need; it changes no other number. Where nobody knows the truth, it costs nothing."""


def full_config(setting: Column, variant: Variant, seed: int) -> RunConfig:
    """The protocol of the paper, then what belongs to method and data set, then the cell."""
    own = BY_DATA.get((variant.method, setting.tree["data"]["name"]), {})
    layers = (paper(variant.method), RECORDED, own, setting.tree, variant.tree, {"seed": seed})
    return settled(build_config(merge(*layers)))


def settled(config: RunConfig) -> RunConfig:
    """Fill in what a run would fill in once it has its data, so that it can be known by its configuration before."""
    method = config.method.for_data(CLASSES[config.data.name])
    needs_truth = Needs.POOL_LABELS in get_method(config.method.name).needs
    split = {"split": {"reveal_pool_labels": True}} if needs_truth else {}
    return build_config(merge(to_tree(config), {"method": to_tree(method)}, split))
