"""Cases to train on: synthetic images of a size, in a pool of a size, split into labelled and unlabelled rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unissl.autoconfig.recipes import with_recipe
from unissl.config import merge
from unissl.data import Dataset
from unissl.methods.base import Needs
from unissl.methods.registry import get_method
from unissl.run.config import RunConfig, build_config, fit_to_data
from unissl.run.inputs import RunInputs, build_train_views
from unissl.types import ImageTable, Split

CPU = torch.device("cpu")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LABELS_PER_CLASS = 4
HELD_OUT = 2
"""Labelled images of each class that are held out, for the methods that need some."""


@dataclass(frozen=True)
class StepCase:
    """A training step: the method, the network, the images and how many of them."""

    net: str = "wrn-28-2"
    labelled: int = 64
    unlabelled: int = 448
    size: int = 32
    classes: int = 10
    pool: int = 4096
    pool_file: Path | None = None
    """A .npy file of at least ``pool`` images to map into memory; without one the images are generated."""
    method: str = "sage"
    compiled: bool = False
    """Whether torch.compile is applied to the network."""
    log_every: int | None = None
    """Steps between two lines of metrics; None: the paper's."""
    lr: float | None = None
    """Learning rate; None: the paper's."""

    @property
    def label(self) -> str:
        compiled = ", compiled" if self.compiled else ""
        return f"{self.net}, {self.labelled} + {self.unlabelled}, {self.size} px{compiled}"


PAPER = StepCase()
SHORT = StepCase(net="wrn-10-1", labelled=10, unlabelled=70)
DIGITS = StepCase(net="wrn-10-1", labelled=10, unlabelled=70, size=16)
TINY = StepCase(net="wrn-10-1", labelled=4, unlabelled=12, size=16, pool=512)


def random_images(count: int, size: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Coloured noise over waves, uint8 (count, size, size, 3), with every grey level and with smooth parts."""
    rng = np.random.default_rng([seed, count, size])
    y, x = np.mgrid[0:size, 0:size] / size
    frequency = rng.uniform(1, 12, (count, 1, 1, 3))
    waves = 100 + 80 * np.sin(frequency * (x + 0.5 * y)[None, :, :, None])
    noise = rng.integers(0, 60, (count, size, size, 3), dtype=np.uint8)
    images: npt.NDArray[np.uint8] = waves.astype(np.uint8) + noise
    return images


def synthetic(case: StepCase) -> tuple[Dataset, Split]:
    """A table with labelled, held-out and pool rows in this order; methods that need the pool's labels get them."""
    labelled, held_out = LABELS_PER_CLASS * case.classes, HELD_OUT * case.classes
    rows = np.arange(case.pool)
    if case.pool <= labelled + held_out:
        raise ValueError("the pool must be larger than the labelled images that are taken from it")
    images = _images(case)
    labels = rows % case.classes
    names = tuple(str(c) for c in range(case.classes))
    dataset = Dataset("synthetic", ImageTable(images, labels, names), None, MEAN, STD, flip=True)
    parts = np.split(rows, [labelled, labelled + held_out])
    if Needs.POOL_LABELS in get_method(case.method).needs:
        return dataset, Split(rows, labels, rows[:0], case.classes)
    return dataset, Split(parts[0], labels[parts[0]], parts[2], case.classes, parts[1], labels[parts[1]])


def _images(case: StepCase) -> npt.NDArray[np.uint8]:
    if case.pool_file is None:
        return random_images(case.pool, case.size)
    mapped: npt.NDArray[np.uint8] = np.load(case.pool_file, mmap_mode="r")
    return mapped[: case.pool]


def config_of(case: StepCase, dataset: Dataset) -> RunConfig:
    """The protocol of the paper, with the network and the batches of the case."""
    overrides: dict[str, Any] = {
        "method": {"name": case.method},
        "net": {"name": case.net},
        "batch": {"labelled": case.labelled, "unlabelled": case.unlabelled},
    }
    if case.log_every is not None:
        overrides = merge(overrides, {"train": {"log_every": case.log_every}})
    if case.lr is not None:
        overrides = merge(overrides, {"optim": {"lr": case.lr}})
    return fit_to_data(build_config(with_recipe(overrides, "paper")), dataset)


def inputs_of(case: StepCase) -> RunInputs:
    """The inputs of a run on the synthetic images of the case."""
    dataset, split = synthetic(case)
    config = config_of(case, dataset)
    return RunInputs(config, dataset, split, CPU, build_train_views(config, dataset, CPU), None, None)
