"""Columns and rows of the paper's tables: data sets with their splits at full scale; methods and forms of SAGE.

A column states everything that depends on the number of classes or the kind of images, so that a configuration can be
resolved, and its run identified, on a machine without the data.
"""

from __future__ import annotations

from typing import Any

from unissl.config import ConfigTree, merge
from unissl_paper.experiments.experiment import Column, Variant

CLASSES = {
    "cifar10": 10, "cifar100": 100, "svhn": 10, "food101": 101, "stl10": 10, "imagenet127": 127,
    "digits": 10, "fashion-mnist": 10,
}  # fmt: skip
DATA_TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "food101": "Food-101"}
MAX_COUNTS = {"cifar10": 4996, "cifar100": 496, "svhn": 4996, "food101": 496}
"""M_max, pool images of the largest class."""
DISTRIBUTIONS = {"u": "uniform", "lt": "long-tailed", "a": "arbitrary"}
VIEWS: dict[str, ConfigTree] = {"food101": {"augment": {"pad": 0, "crop": 32}}}
"""Views that differ from the common ones: Food-101 is cropped from 36 x 36 pixels, without padding."""


def column(data: str, short: str, gamma: int, labels: int = 4) -> Column:
    """gamma_l = 1 and ``labels`` per class; for a uniform pool gamma_u only sets the total."""
    split = {
        "labels_per_class": labels,
        "pool_distribution": DISTRIBUTIONS[short],
        "max_count": MAX_COUNTS[data],
        "gamma": gamma,
    }
    return Column(f"{data}-{short}{gamma}", f"{DATA_TITLES[data]} {DISTRIBUTIONS[short]} {gamma}", _tree(data, split))


def columns(data: str, gammas: tuple[int, ...], shorts: tuple[str, ...] = ("u", "lt", "a")) -> tuple[Column, ...]:
    return tuple(column(data, short, gamma) for gamma in gammas for short in shorts)


def altered(base: Column, name: str, title: str, tree: ConfigTree) -> Column:
    """Another column with some settings changed."""
    return Column(name, title, merge(base.tree, tree))


def _tree(data: str, split: ConfigTree) -> ConfigTree:
    """Images of all data sets are flipped, of SVHN too, as in the released code."""
    return merge({"data": {"name": data}, "split": split, "augment": {"flip": True}}, VIEWS.get(data, {}))


A100 = column("cifar10", "a", 100)
"""CIFAR-10, N = 40, arbitrary, gamma_u = 100: the column of most experiments, whose log the authors released."""
STL10 = Column("stl10", "STL-10", _tree("stl10", {"labels_per_class": 4}))
"""Its pool is the 100,000 unlabelled images, whose class distribution is unknown."""
IMAGENET127 = Column(
    "imagenet127", "ImageNet-127", _tree("imagenet127", {"labelled_fraction": 0.1, "pool_distribution": "natural"})
)
"""A tenth of each class is labelled and the rest is the pool, so gamma_l = gamma_u = 286 follows from the data."""
ONE_LABEL = altered(A100, "cifar10-n10-a100", "CIFAR-10, 1 label per class", {"split": {"labels_per_class": 1}})
RESNET50 = altered(A100, "cifar10-resnet50-a100", "CIFAR-10 with ResNet-50", {"net": {"name": "resnet-50"}})
OPEN_SET = altered(
    A100, "cifar10-open-a100", "CIFAR-10 with OOD images in the pool",
    {"split": {"ood_data": "imagenet127", "ood_data_classes": 10, "ood_count": 5000}},
)  # fmt: skip

METHOD_TITLES = {
    "fully-supervised": "CE", "logit-adjust": "LA", "fixmatch": "FixMatch", "freematch": "FreeMatch",
    "softmatch": "SoftMatch", "cgmatch": "CGMatch", "acr": "ACR", "simpro": "SimPro", "cdmad": "CDMAD",
    "meta-expert": "Meta-Expert", "cpg": "CPG", "sage": "SAGE", "ssb": "SSB", "scomatch": "SCOMatch",
    "calimatch": "CaliMatch", "labels-only": "Labels only",
}  # fmt: skip


def row(method: str, name: str | None = None, title: str | None = None, **settings: Any) -> Variant:
    """A method with its defaults, or with some of its settings changed."""
    return Variant(name or method, title or METHOD_TITLES[method], {"method": {"name": method, **settings}})


def rows(*methods: str) -> tuple[Variant, ...]:
    return tuple(row(method) for method in methods)


def sage(name: str, title: str, **settings: Any) -> Variant:
    return row("sage", name, title, **settings)


SAGE = row("sage")
ALL_TWELVE = rows(
    "fully-supervised", "logit-adjust", "fixmatch", "freematch", "softmatch", "cgmatch", "acr", "simpro", "cdmad",
    "meta-expert", "cpg", "sage",
)  # fmt: skip
FIVE = rows("fixmatch", "cgmatch", "meta-expert", "cpg", "sage")
ABLATION = (
    sage("v1", "V1: none", auxiliary=False, weighting="none", contrastive=False, consistency=False),
    sage("v2", "V2: AB", weighting="none", contrastive=False, consistency=False),
    sage("v3", "V3: AB, DRP", contrastive=False, consistency=False),
    sage("sage", "V4: AB, DRP, GRI"),
)
"""What AB, DRP and GRI each add. V1 is not defined further in the paper; here its pseudo-labels, all of weight one,
train the primary head."""
