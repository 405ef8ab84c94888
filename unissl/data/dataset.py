"""The data configuration of a run, and the data set that a source loads for it."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from unissl.config import Settings
from unissl.data.groups import hold_out_groups
from unissl.errors import UserError, shortened
from unissl.types import ImageTable, Labels, Pixels, Rows
from unissl.utils.mmap_rows import take_rows

OWN_DATA = ("folder", "parquet", "arrays")
"""Sources of the user's own images, which are checked for issues and duplicates."""
MAX_CLASSES = 100_000
"""Of numbered classes; a label of a billion is a mistake, and as many names would fill the memory."""
MAX_DIGITS = 18
MAX_COUNTED, CHUNK = 10_000, 256
"""Images that mean and standard deviation are computed from, and how many of them are read at a time."""
MIN_TRAIN_LABELS = 2
"""Labels of each class that are never held out for testing."""


class DataConfig(Settings):
    """Which images to train on. The default of a missing setting depends on the source."""

    name: str = "digits"
    """A known data set (`unissl datasets` lists them), or "folder" or "parquet" for images of your own."""
    root: str | None = None
    """Folder or file where the data is. For "parquet" a file, or a folder with train*.parquet (and test*.parquet)."""
    labels: str | None = None
    """For "folder": a CSV file with the columns file and label; all other images are unlabelled."""
    test: str | None = None
    """Test images: for "folder" a folder with one subfolder per class, for "parquet" a parquet file or folder."""
    listed_only: bool = False
    """For "folder" with a label file: use only the images that the file names."""
    follow_links: bool = False
    """For "folder": read files and folders outside of it that links in it lead to; by default they are skipped."""
    image_size: int | None = Field(default=None, ge=4, le=1024)
    """Side in pixels that images are scaled to. Left out: as they are, and 32 for a folder or images of mixed sizes."""
    class_map: str | None = None
    """For "imagenet127": a text file with a class (a wnid such as n01440764) and its group on each line."""
    groups: Literal["folder"] | None = None
    """Images of one group stay together in folds and hold-outs. "folder": the folder of an image is its group. A column
    "group" of the label file needs no setting."""
    test_holdout: int | None = Field(default=None, ge=1)
    """Number of labelled images set aside as a test set, stratified by class, if the source has no test part. Default:
    500 for digits (a fixed random draw)."""
    test_limit: int | None = Field(default=None, ge=1)
    """Evaluate on a fixed random subset of so many test images, if evaluation on all of them would take too long."""


@dataclass(frozen=True)
class Dataset:
    """A training table, an optional test table, and how their images are normalised and augmented."""

    name: str
    train: ImageTable
    test: ImageTable | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    """Whether a mirrored image is still an image of its class."""
    crop: int | None = None
    """Side of the views if they are random crops of larger images; None: crops of padded images."""
    split: Mapping[str, Any] = field(default_factory=dict)
    """Split settings of the published comparisons, the defaults for this data set."""


def channel_mean_std(images: Pixels) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of each channel in 0..1 units, from at most 10,000 evenly spaced images, rounded to 4 digits.

    Pixel values are counted, not summed, so the result is exact and the same for every chunking and machine.
    A channel that never changes gets std 1, since nothing could be divided by 0.
    """
    rows = np.linspace(0, len(images) - 1, min(len(images), MAX_COUNTED)).astype(np.int64)
    channels = images.shape[-1]
    counts = np.zeros((channels, 256), dtype=np.int64)
    for start in range(0, len(rows), CHUNK):
        block = take_rows(images, rows[start : start + CHUNK])
        for c in range(channels):
            counts[c] += np.bincount(block[..., c].ravel(), minlength=256)
    values = np.arange(256) / 255
    share = counts / counts.sum(axis=1, keepdims=True)
    mean = share @ values
    std = np.sqrt((share * (values - mean[:, None]) ** 2).sum(axis=1))
    return tuple(round(float(m), 4) for m in mean), tuple(round(float(s), 4) or 1.0 for s in std)


def choose_holdout(labels: Labels, count: int, groups: Rows | None = None) -> Rows:
    """``count`` labelled rows for testing, ascending, stratified by class; with ``groups`` at most as many, of whole
    groups.

    Class c with n_c of n labels gives about count * n_c / n of them (largest remainder), but keeps two labels, or its
    only one, for training. The rows depend on the labels only, not on the seed of the run.
    """
    classes, sizes = np.unique(labels[labels >= 0], return_counts=True)
    available = np.maximum(sizes - MIN_TRAIN_LABELS, 0)
    if count > available.sum():
        raise UserError(
            f"--holdout {count} (data.test_holdout) is too large: of {sizes.sum()} labelled images {available.sum()} "
            "can be held out, since every class keeps two for training; choose a smaller number or label more images."
        )
    if groups is not None:
        return hold_out_groups(labels, groups, count, MIN_TRAIN_LABELS)
    quota = count * sizes / sizes.sum()
    chosen = np.minimum(np.floor(quota).astype(np.int64), available)
    while chosen.sum() < count:
        remainder = np.where(chosen < available, quota - chosen, -np.inf)
        chosen[np.argmax(remainder)] += 1
    rng = np.random.RandomState(0)
    rows = [rng.permutation(np.flatnonzero(labels == c))[:n] for c, n in zip(classes, chosen, strict=True)]
    return np.sort(np.concatenate(rows))


def limit_test(dataset: Dataset, limit: int | None) -> Dataset:
    """The data set with a fixed random subset of at most ``limit`` test images."""
    test = dataset.test
    if limit is None or test is None or len(test) <= limit:
        return dataset
    rows = np.sort(np.random.RandomState(0).permutation(len(test))[:limit])
    files = None if test.files is None else tuple(test.files[row] for row in rows)
    content = derived_content("subset", test.content, limit)
    subset = replace(test, images=test.images[rows], labels=test.labels[rows], files=files, content=content)
    return replace(dataset, test=subset)


def derived_content(*parts: str | int | None) -> str | None:
    """The content hash of a table that is computed from others: a hash of their hashes; None if one has none."""
    return None if None in parts else hashlib.sha256(repr(parts).encode()).hexdigest()


def sort_class_names(names: Iterable[str]) -> tuple[str, ...]:
    """Alphabetical, but 2 before 10 where all names are whole numbers."""
    unique = set(names)
    if all(name.isdecimal() and len(name) <= MAX_DIGITS for name in unique):
        return tuple(sorted(unique, key=lambda name: (int(name), name)))
    return tuple(sorted(unique))


def numbered_classes(labels: Labels, where: str) -> tuple[str, ...]:
    """The names 0, 1, ... up to the largest label."""
    largest = int(labels.max(initial=-1))
    if largest >= MAX_CLASSES:
        raise UserError(f"{where} has the label {largest}; number the classes from 0, below {MAX_CLASSES:,}.")
    return tuple(str(number) for number in range(largest + 1))


def require_two_classes(class_names: tuple[str, ...], where: str) -> None:
    if len(class_names) < 2:
        names = f"only {shortened(class_names[0])!r}" if class_names else "none"
        raise UserError(f"A classifier needs at least two classes, and {where} has {names}; add another class.")


def require_distinct_names(class_names: tuple[str, ...], where: str) -> None:
    """Refuse class names that differ only in case, spaces or invisible characters, or as 1 and 1.0 do: they are one
    class, written in two ways."""
    by_key: dict[str, str] = {}
    for name in class_names:
        other = by_key.setdefault(_look(name), name)
        if other != name:
            is_case = other.isprintable() and name.isprintable() and "." not in name + other
            differ = "differ only in case or spaces" if is_case else "look like one class"
            raise UserError(
                f"{where} has the classes {shortened(other)!r} and {shortened(name)!r}, which {differ};"
                " write them alike, or rename one of them."
            )


def _look(name: str) -> str:
    """What a reader sees of a name: without case, spaces and characters that only format text."""
    letters = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    look = "".join(unicodedata.normalize("NFC", letters).casefold().split())
    whole, _, fraction = look.partition(".")
    return whole if whole.isdecimal() and fraction and not fraction.strip("0") else look
