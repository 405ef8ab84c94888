"""The miniature of an experiment: the same code on small images, a small network and few steps.

:func:`mini_tree` is the only place where the two scales part. It starts from the full configuration with all defaults
written out, and changes

- data and split: digits for CIFAR-10 and SVHN, Fashion-MNIST for the rest; gamma a tenth where a class has 110 images
  instead of 4,996; for sets with a mix of their own, the nearest that a small set can do;
- the network: WRN-10-1 for WRN-28-2, ResNet-18 for ResNet-50; the number of anchors shrinks with its width;
- the budget, and what a short one forces, as the recipe ``short`` has it: small batches, and memories (EMA, BatchNorm,
  momenta of the methods) of a hundred steps or less;
- views: a border of 2 pixels for images of 16, and for digits no mirroring and half the warps.

Nothing else: :mod:`tests.unit.paper.test_paper_mini` compares both scales key by key. Choices by number of classes
(SAGE's temperatures, LA's tau) stay those of the full scale; Meta-Expert's cuts have to fit the classes that there are.
"""

from __future__ import annotations

from typing import Any

from unissl.autoconfig.recipes import short
from unissl.config import ConfigTree, merge, to_tree
from unissl.paper.experiments.columns import CLASSES
from unissl.paper.grid.resolve import settled
from unissl.run.config import RunConfig, build_config

STEPS = 300
UNKNOWN_TESTS = 500
"""Unknowns among the test images, as many as there are digits."""
BUDGET: ConfigTree = {"steps": STEPS, "evaluations": 10, "method_periods": 10, "log_every": 10, "checkpoint_every": 60}
NETS = {"wrn-28-2": "wrn-10-1", "resnet-50": "resnet-18"}
HALF_AS_WIDE = 2
"""WRN-28-2 has features of d = 128, WRN-10-1 of 64."""

DIGITS: ConfigTree = {
    "data": {"name": "digits", "image_size": 16, "test_holdout": 500},
    "augment": {"flip": False, "pad": 2, "geometry_scale": 0.5},
}
FASHION: ConfigTree = {"data": {"name": "fashion-mnist", "image_size": 16, "test_limit": 1000}, "augment": {"pad": 2}}
CUT_FASHION = merge(FASHION, {"data": {"image_size": 18}, "augment": {"pad": 0, "crop": 16}})
"""Views cut from larger images without a border, as for Food-101."""
DATA = {
    "cifar10": DIGITS, "svhn": DIGITS,
    "cifar100": FASHION, "food101": CUT_FASHION, "stl10": FASHION, "imagenet127": FASHION,
}  # fmt: skip
OWN_MIX: dict[str, ConfigTree] = {
    "stl10": {"pool_distribution": "uniform", "gamma": 1.0, "max_count": 496},
    "imagenet127": {
        "labels_per_class": 50, "labelled_distribution": "long-tailed", "gamma_l": 10.0,
        "pool_distribution": "long-tailed", "gamma": 10.0, "max_count": 450,
    },
}  # fmt: skip
"""Splits for sets whose mix is their own: STL-10's pool is about balanced; ImageNet-127 has the same tail in labels and
pool, nine times as many images in the pool."""


def mini_config(full: RunConfig) -> RunConfig:
    return settled(build_config(mini_tree(to_tree(full))))


def mini_tree(full: ConfigTree) -> ConfigTree:
    method = full["method"]
    small = merge(full, short(method["name"]), DATA[full["data"]["name"]])
    small["net"]["name"] = NETS[full["net"]["name"]]
    small["train"] = merge(small["train"], BUDGET)
    small["split"] = _mini_split(full)
    if "ood_data" in full["split"]:
        small["data"]["test_limit"] = UNKNOWN_TESTS
    small["method"] = merge(small["method"], _mini_method(method, CLASSES[small["data"]["name"]]))
    return small


def _mini_split(full: ConfigTree) -> ConfigTree:
    data, split = full["data"]["name"], dict(full["split"])
    if data in OWN_MIX:
        split.pop("labelled_fraction", None)
        return merge(split, OWN_MIX[data])
    if DATA[data] is DIGITS:
        split |= {"max_count": 110, "gamma": split["gamma"] / 10}
    if "ood_data" in split:
        split |= {"ood_data": "fashion-mnist", "ood_count": 200}
    return split


def _mini_method(method: ConfigTree, classes: int) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    if "num_anchors" in method:
        changed["num_anchors"] = method["num_anchors"] // HALF_AS_WIDE
    if "cuts" in method:
        changed["cuts"] = (round(classes / 5), round(2 * classes / 5))
    return changed
