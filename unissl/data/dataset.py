"""What a run is told about its data, and what it gets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from unissl.config import Settings
from unissl.errors import UserError, shortened
from unissl.types import ImageTable

MAX_CLASSES = 100_000
"""Of classes that are numbered; a label of a billion is a mistake, and as many names would fill the memory."""
MAX_DIGITS = 18


class DataConfig(Settings):
    """Which images to learn from. What is left out takes the value that fits the source."""

    name: str = "digits"
    """A known data set (`unissl datasets` lists them), or "folder" or "parquet" for images of your own."""
    root: str | None = None
    """Folder or file where the data is. For "parquet" a file, or a folder with train*.parquet (and test*.parquet)."""
    labels: str | None = None
    """For "folder": a CSV file with the columns file and label; all other images are unlabelled."""
    test: str | None = None
    """Test images: for "folder" a folder with one subfolder per class, for "parquet" a parquet file or folder."""
    image_size: int | None = Field(default=None, ge=4, le=1024)
    """Side in pixels that images are scaled to. Left out: as they are, and 32 for a folder or images of mixed sizes."""
    class_map: str | None = None
    """For "imagenet127": a text file with a class (a wnid such as n01440764) and its group on each line."""
    test_holdout: int | None = Field(default=None, ge=1)
    """Number of labelled images set aside for testing where the source has no test part. Left out: 500 for digits."""
    test_limit: int | None = Field(default=None, ge=1)
    """Test on this many of the test images, always the same ones, where looking at all of them would take too long."""


@dataclass(frozen=True)
class Dataset:
    """A table to learn from, perhaps one to test on, and how its images are normalised and may be flipped."""

    name: str
    train: ImageTable
    test: ImageTable | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    """Whether a mirrored image is still an image of its class."""
    crop: int | None = None
    """Side of the views, if they are cut from larger images instead of images with a border around them."""
    split: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the split in the published comparisons, for when nothing is said about it."""


def choose_holdout(labels: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """``count`` labelled rows, ascending, always the same ones for the same labels: independent of the run's seed."""
    labelled = np.flatnonzero(labels >= 0)
    if count >= len(labelled):
        raise UserError(
            f"data.test_holdout = {count} leaves nothing to learn from: there are {len(labelled)} labelled images;"
            " choose a smaller number."
        )
    return np.sort(np.random.RandomState(0).permutation(labelled)[:count])


def limit_test(dataset: Dataset, limit: int | None) -> Dataset:
    """The data set with at most ``limit`` test images, chosen at random but always the same ones."""
    test = dataset.test
    if limit is None or test is None or len(test) <= limit:
        return dataset
    rows = np.sort(np.random.RandomState(0).permutation(len(test))[:limit])
    files = None if test.files is None else tuple(test.files[row] for row in rows)
    return replace(dataset, test=replace(test, images=test.images[rows], labels=test.labels[rows], files=files))


def data_folder() -> Path | None:
    """``$UNISSL_DATA``, where downloaded data sets are looked for."""
    named = os.environ.get("UNISSL_DATA")
    return Path(named) if named else None


def sort_class_names(names: Iterable[str]) -> tuple[str, ...]:
    """Alphabetical, but 2 before 10 where all names are whole numbers."""
    unique = set(names)
    if all(name.isdecimal() and len(name) <= MAX_DIGITS for name in unique):
        return tuple(sorted(unique, key=lambda name: (int(name), name)))
    return tuple(sorted(unique))


def is_name(text: str) -> bool:
    """Whether a class may be called so: text that can be written to a file."""
    return bool(text) and text.isprintable()


def numbered_classes(labels: npt.NDArray[np.int64], where: str) -> tuple[str, ...]:
    """The names 0, 1, ... up to the largest label."""
    largest = int(labels.max(initial=-1))
    if largest >= MAX_CLASSES:
        raise UserError(f"{where} has the label {largest}; number the classes from 0, below {MAX_CLASSES:,}.")
    return tuple(str(number) for number in range(largest + 1))


def require_two_classes(class_names: tuple[str, ...], where: str) -> None:
    if len(class_names) < 2:
        found = f"only {shortened(class_names[0])!r}" if class_names else "none"
        raise UserError(f"A classifier needs at least two classes, and {where} has {found}; add another class.")
