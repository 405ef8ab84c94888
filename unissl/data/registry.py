"""Registry of data sets: their loaders and where to download them, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from unissl.data.arrays import load_arrays, load_digits
from unissl.data.dataset import DataConfig, Dataset, limit_test
from unissl.data.folder.index import FolderIndex
from unissl.data.folder.load import load_folder
from unissl.data.sources import fashion_mnist, food101, imagenet127, stl10, svhn
from unissl.data.sources.cifar import CIFAR10, CIFAR100, find_cifar, load_cifar
from unissl.data.sources.parquet import load_parquet
from unissl.errors import UserError, did_you_mean


@dataclass(frozen=True)
class DatasetCard:
    """A known data set in one line; ``present`` is whether its files were found."""

    name: str
    classes: int
    size: int
    channels: int
    where: str
    present: bool


@dataclass(frozen=True)
class _Source:
    """A loader and the settings that it uses beside image_size and test_limit."""

    load: Callable[[DataConfig], Dataset]
    uses: frozenset[str]


_SOURCES = {
    "digits": _Source(load_digits, frozenset({"test_holdout"})),
    "fashion-mnist": _Source(fashion_mnist.load_fashion_mnist, frozenset({"root"})),
    "cifar10": _Source(partial(load_cifar, release=CIFAR10), frozenset({"root"})),
    "cifar100": _Source(partial(load_cifar, release=CIFAR100), frozenset({"root"})),
    "svhn": _Source(svhn.load_svhn, frozenset({"root"})),
    "stl10": _Source(stl10.load_stl10, frozenset({"root"})),
    "food101": _Source(food101.load_food101, frozenset({"root"})),
    "imagenet127": _Source(imagenet127.load_imagenet127, frozenset({"root", "class_map"})),
    "folder": _Source(
        load_folder, frozenset({"root", "labels", "test", "test_holdout", "listed_only", "follow_links", "groups"})
    ),
    "arrays": _Source(load_arrays, frozenset({"root", "test_holdout"})),
    "parquet": _Source(load_parquet, frozenset({"root", "test", "test_holdout"})),
}


def load(config: DataConfig, index: FolderIndex | None = None) -> Dataset:
    """The data set of ``config``, decoded once and memory-mapped afterwards; ``index`` is an earlier scan of its
    folder (:func:`unissl.data.scan_folder`)."""
    if config.name not in _SOURCES:
        raise UserError(f"Unknown data set {config.name!r}.{did_you_mean(config.name, list(_SOURCES))}")
    source = _SOURCES[config.name]
    for key in ("root", "labels", "test", "test_holdout", "class_map", "listed_only", "follow_links", "groups"):
        if getattr(config, key) not in (None, False) and key not in source.uses:
            setting = "--holdout (data.test_holdout)" if key == "test_holdout" else f"data.{key}"
            raise UserError(f"{setting} has no effect on {config.name!r}; leave it out.")
    dataset = load_folder(config, index) if config.name == "folder" else source.load(config)
    return limit_test(dataset, config.test_limit)


def names() -> tuple[str, ...]:
    """Every name that :func:`load` takes."""
    return tuple(_SOURCES)


def known() -> list[DatasetCard]:
    """One card per published data set, so without "folder" and "parquet"."""
    return [
        DatasetCard("digits", 10, 8, 1, "Comes with scikit-learn; nothing to download.", bool(find_spec("sklearn"))),
        DatasetCard("fashion-mnist", 10, 28, 1, fashion_mnist.WHERE, bool(fashion_mnist.find_fashion_mnist(None))),
        DatasetCard(CIFAR10.name, CIFAR10.classes, 32, 3, CIFAR10.where, bool(find_cifar(None, CIFAR10))),
        DatasetCard(CIFAR100.name, CIFAR100.classes, 32, 3, CIFAR100.where, bool(find_cifar(None, CIFAR100))),
        DatasetCard("svhn", 10, 32, 3, svhn.LOCATION.where, bool(svhn.LOCATION.find(None))),
        DatasetCard("stl10", 10, 32, 3, stl10.LOCATION.where, bool(stl10.LOCATION.find(None))),
        DatasetCard("food101", 101, 32, 3, food101.LOCATION.where, bool(food101.LOCATION.find(None))),
        DatasetCard("imagenet127", 127, 32, 3, imagenet127.FOLDERS.where, bool(imagenet127.find_imagenet127(None))),
    ]
