"""From a cell of an experiment to a resolved configuration, at full, mini or mid scale.

:func:`mini_config` and :func:`mid_config` are the only places where scales differ. Both start from the full
configuration with all defaults written out. The miniature changes

- data and split: digits for CIFAR-10 and SVHN, Fashion-MNIST for the rest; a tenth of gamma where a class has 110
  images instead of 4,996; for data sets with a class distribution of their own, the nearest that a small set allows;
- the network: WRN-10-1 for WRN-28-2, ResNet-18 for ResNet-50; the number of anchors shrinks with its width;
- the budget, and what a short one requires, as in the recipe ``short``: small batches, and averages (EMA, BatchNorm,
  momenta of the methods) over a hundred steps or less;
- views: padding of 2 pixels for images of 16, and for digits no flips and half the warps.

Nothing else: :mod:`tests.unit.paper.test_paper_mini` compares both scales key by key. Settings that depend on the
number of classes (SAGE's temperatures, LA's tau) stay those of the full scale; Meta-Expert's cuts must fit the classes.

The mid scale trains the published configuration on the published data with WRN-10-1, a quarter of the batch and an
eighth of the steps, so that a run takes an hour on one core; phases of the methods are shares of the budget.
"""

from __future__ import annotations

from typing import Any

from unissl.autoconfig.recipes import paper, short
from unissl.config import ConfigTree, merge, to_tree
from unissl.methods.base import Needs
from unissl.methods.registry import get_method
from unissl.run.config import RunConfig, build_config
from unissl_paper.experiments.axes import CLASSES
from unissl_paper.experiments.experiment import Column, Scale, Variant

BY_DATA: dict[tuple[str, str], ConfigTree] = {
    ("cgmatch", "svhn"): {"method": {"threshold_min": 0.9, "threshold_max": 0.95}},
}
"""Published settings of a method for one data set."""
RECORDED: ConfigTree = {"train": {"diagnostics": True}}
"""Every run records what the figures need; it changes no other number, and does nothing where labels are unknown."""

MINI_BUDGET: ConfigTree = {
    "steps": 300, "evaluations": 10, "method_periods": 10, "log_every": 10, "checkpoint_every": 60,
}  # fmt: skip
MINI_OOD_TESTS = 500
"""OOD images among the test images, as many as there are digits."""
MINI_NETS = {"wrn-28-2": "wrn-10-1", "resnet-50": "resnet-18"}
WIDTH_RATIO = 2
"""WRN-28-2 has features of d = 128, WRN-10-1 of 64."""
DIGITS: ConfigTree = {
    "data": {"name": "digits", "image_size": 16, "test_holdout": 500},
    "augment": {"flip": False, "pad": 2, "geometry_scale": 0.5},
}
FASHION: ConfigTree = {"data": {"name": "fashion-mnist", "image_size": 16, "test_limit": 1000}, "augment": {"pad": 2}}
CROPPED_FASHION = merge(FASHION, {"data": {"image_size": 18}, "augment": {"pad": 0, "crop": 16}})
"""Views cropped from larger images without padding, as for Food-101."""
MINI_DATA = {
    "cifar10": DIGITS, "svhn": DIGITS,
    "cifar100": FASHION, "food101": CROPPED_FASHION, "stl10": FASHION, "imagenet127": FASHION,
}  # fmt: skip
MINI_SPLITS: dict[str, ConfigTree] = {
    "stl10": {"pool_distribution": "uniform", "gamma": 1.0, "max_count": 496},
    "imagenet127": {
        "labels_per_class": 50, "labelled_distribution": "long-tailed", "gamma_l": 10.0,
        "pool_distribution": "long-tailed", "gamma": 10.0, "max_count": 450,
    },
}  # fmt: skip
"""Splits for data sets with a class distribution of their own: STL-10's pool is about balanced; ImageNet-127 has the
same tail in labels and pool, and nine times as many images in the pool."""

MID: ConfigTree = {
    "net": {"name": "wrn-10-1"},
    "batch": {"labelled": 16, "unlabelled": 112},
    "train": {"steps": 2**15, "evaluations": 64, "checkpoint_every": 2**15 // 64},
}
"""A checkpoint at each evaluation."""


def cell_config(column: Column, variant: Variant, seed: int, scale: Scale) -> RunConfig:
    """The protocol of the paper, then settings for method and data set, then the cell, at the given scale."""
    by_data = BY_DATA.get((variant.method, column.data), {})
    layers = (paper(variant.method), RECORDED, by_data, column.tree, variant.tree, {"seed": seed})
    full = resolve(build_config(merge(*layers)))
    if scale == "full":
        return full
    return mini_config(full) if scale == "mini" else mid_config(full)


def resolve(config: RunConfig) -> RunConfig:
    """Fill in what a run fills in from its data, so that a configuration identifies its run before the data is read."""
    method = config.method.for_data(CLASSES[config.data.name])
    needs_labels = Needs.POOL_LABELS in get_method(config.method.name).needs
    split = {"split": {"reveal_pool_labels": True}} if needs_labels else {}
    return build_config(merge(to_tree(config), {"method": to_tree(method), "train": {"cv_folds": 0}}, split))


def mini_config(full: RunConfig) -> RunConfig:
    return resolve(build_config(mini_tree(to_tree(full))))


def mid_config(full: RunConfig) -> RunConfig:
    return resolve(build_config(merge(to_tree(full), MID)))


def mini_tree(full: ConfigTree) -> ConfigTree:
    method = full["method"]
    recipe = short(method["name"])
    recipe.get("method", {}).pop("form", None)  # the experiment decides the form
    small = merge(full, recipe, MINI_DATA[full["data"]["name"]])
    small["net"]["name"] = MINI_NETS[full["net"]["name"]]
    small["train"] = merge(small["train"], MINI_BUDGET)
    small["split"] = _mini_split(full)
    if "ood_data" in full["split"]:
        small["data"]["test_limit"] = MINI_OOD_TESTS
    small["method"] = merge(small["method"], _mini_method(method, CLASSES[small["data"]["name"]]))
    return small


def _mini_split(full: ConfigTree) -> ConfigTree:
    data, split = full["data"]["name"], dict(full["split"])
    if data in MINI_SPLITS:
        split.pop("labelled_fraction", None)
        return merge(split, MINI_SPLITS[data])
    if MINI_DATA[data] is DIGITS:
        split |= {"max_count": 110, "gamma": split["gamma"] / 10}
    if "ood_data" in split:
        split |= {"ood_data": "fashion-mnist", "ood_count": 200}
    return split


def _mini_method(method: ConfigTree, classes: int) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if "num_anchors" in method:
        changes["num_anchors"] = method["num_anchors"] // WIDTH_RATIO
    if "cuts" in method:
        changes["cuts"] = (round(classes / 5), round(2 * classes / 5))
    return changes
