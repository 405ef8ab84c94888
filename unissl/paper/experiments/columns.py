"""The columns of the paper's tables: data sets and their splits at full scale.

Everything that the number of classes or the kind of images decides is said here, so that a configuration can be
resolved, and a run be known by it, on a machine that does not have the data.
"""

from __future__ import annotations

from unissl.config import ConfigTree, merge
from unissl.paper.experiments.experiment import Column

CLASSES = {
    "cifar10": 10, "cifar100": 100, "svhn": 10, "food101": 101, "stl10": 10, "imagenet127": 127,
    "digits": 10, "fashion-mnist": 10,
}  # fmt: skip
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "food101": "Food-101"}
MAX_COUNTS = {"cifar10": 4996, "cifar100": 496, "svhn": 4996, "food101": 496}
"""M_max, pool images of the largest class."""
PROFILES = {"u": "uniform", "lt": "long-tailed", "a": "arbitrary"}
VIEWS: dict[str, ConfigTree] = {"food101": {"augment": {"pad": 0, "crop": 32}}}
"""Where views differ from the usual: Food-101 is cut out of 36 x 36 pixels, without a border."""


def column(data: str, short: str, gamma: int, labels: int = 4) -> Column:
    """gamma_l = 1 and ``labels`` per class; for a uniform pool gamma_u only sets the total."""
    split = {
        "labels_per_class": labels,
        "pool_distribution": PROFILES[short],
        "max_count": MAX_COUNTS[data],
        "gamma": gamma,
    }
    return Column(f"{data}-{short}{gamma}", f"{TITLES[data]} {PROFILES[short]} {gamma}", _tree(data, split))


def columns(data: str, gammas: tuple[int, ...], shorts: tuple[str, ...] = ("u", "lt", "a")) -> tuple[Column, ...]:
    return tuple(column(data, short, gamma) for gamma in gammas for short in shorts)


def altered(base: Column, name: str, title: str, tree: ConfigTree) -> Column:
    return Column(name, title, merge(base.tree, tree))


def _tree(data: str, split: ConfigTree) -> ConfigTree:
    """All sets are mirrored, SVHN too, as in the released code."""
    return merge({"data": {"name": data}, "split": split, "augment": {"flip": True}}, VIEWS.get(data, {}))


A100 = column("cifar10", "a", 100)
"""CIFAR-10, N = 40, arbitrary, gamma_u = 100: where the authors looked closest, and whose log they released."""
STL10 = Column("stl10", "STL-10", _tree("stl10", {"labels_per_class": 4}))
"""Its pool is the 100,000 images that nobody labelled, in the mix they come in."""
IMAGENET127 = Column(
    "imagenet127", "ImageNet-127", _tree("imagenet127", {"labelled_fraction": 0.1, "pool_distribution": "natural"})
)
"""A tenth of each class is labelled, the rest is the pool, so that gamma_l = gamma_u = 286 is the data's own."""
ONE_LABEL = altered(A100, "cifar10-n10-a100", "CIFAR-10, 1 label per class", {"split": {"labels_per_class": 1}})
RESNET50 = altered(A100, "cifar10-resnet50-a100", "CIFAR-10 with ResNet-50", {"net": {"name": "resnet-50"}})
OPEN_SET = altered(
    A100, "cifar10-open-a100", "CIFAR-10 with unknowns in the pool",
    {"split": {"ood_data": "imagenet127", "ood_data_classes": 10, "ood_count": 5000}},
)  # fmt: skip
