"""The open-set setting: a pool and a test set that contain out-of-distribution (OOD) images.

OOD images come from classes of the data set that are declared OOD, from a second data set, or both. Their rows have the
label ``OOD`` in the table. The split puts them into the pool, accuracy is computed on the other test images, and the
outlier score is evaluated by how well it separates the two kinds of test images.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unissl.data import DataConfig, Dataset, load
from unissl.data.dataset import derived_content, require_two_classes
from unissl.data.folder.index import FolderIndex
from unissl.data.images.resize import scale_arrays
from unissl.errors import UserError, did_you_mean
from unissl.splits import SplitConfig
from unissl.types import OOD, ImageTable, Pixels
from unissl.utils.progress import log


def load_data(data: DataConfig, split: SplitConfig, index: FolderIndex | None = None) -> Dataset:
    """The data set with the OOD images of the split; ``index`` is an earlier scan of the image folder."""
    dataset = load(data, index)
    if split.ood_classes:
        dataset = mark_ood_classes(dataset, split.ood_classes)
    if split.ood_data is not None:
        size = dataset.train.images.shape[1]
        chosen = DataConfig(name=split.ood_data, root=split.ood_root, image_size=size, test_limit=data.test_limit)
        dataset = add_ood_images(dataset, load(chosen), split.ood_data_classes)
    return dataset


def announce_data(data: DataConfig, split: SplitConfig) -> None:
    """Name the files and folders that the configuration of a run folder makes a command read: the folder may come from
    somebody else."""
    paths = [path for path in (data.root, data.labels, data.test, split.ood_root) if path is not None]
    if paths:
        log.info("reading what the run's config.toml names: %s", ", ".join(paths))


def mark_ood_classes(dataset: Dataset, ood_classes: tuple[str, ...]) -> Dataset:
    """Remove these classes from the classes; their images become OOD images."""
    names = dataset.train.class_names
    for name in ood_classes:
        if name not in names:
            raise UserError(
                f"split.ood_classes names {name!r}, which is no class of {dataset.name}."
                f"{did_you_mean(name, list(names))}"
            )
    known = tuple(name for name in names if name not in ood_classes)
    require_two_classes(known, f"{dataset.name} without its OOD classes")
    number = np.array([known.index(name) if name in known else OOD for name in names], dtype=np.int64)

    def relabelled(table: ImageTable) -> ImageTable:
        labels = np.where(table.labels >= 0, number[table.labels], table.labels)
        return replace(table, labels=labels, class_names=known)

    test = None if dataset.test is None else relabelled(dataset.test)
    return replace(dataset, train=relabelled(dataset.train), test=test)


def add_ood_images(dataset: Dataset, others: Dataset, classes: int | None = None) -> Dataset:
    """Append the images of another data set, all or those of its first ``classes`` classes, as OOD images, in the size
    and channels of this one."""
    train = _append(dataset.train, others.train, classes)
    test = dataset.test
    if test is not None and others.test is not None:
        test = _append(test, others.test, classes)
    return replace(dataset, train=train, test=test)


def _append(table: ImageTable, other: ImageTable, classes: int | None) -> ImageTable:
    images = other.images if classes is None else other.images[(other.labels >= 0) & (other.labels < classes)]
    height, width, channels = table.images.shape[1:]
    images = _with_channels(images, channels)
    if images.shape[1:3] != (height, width):
        if height != width:
            raise UserError(
                f"Images of {height} x {width} pixels cannot be combined with split.ood_data; set data.image_size."
            )
        images = scale_arrays(images, height)
    groups = table.groups
    if groups is not None:  # each added image is a group by itself
        groups = np.concatenate([groups, groups.max(initial=-1) + 1 + np.arange(len(images))])
    return replace(
        table,
        images=np.concatenate([table.images, images]),
        labels=np.concatenate([table.labels, np.full(len(images), OOD)]),
        files=None if table.files is None else (*table.files, *[""] * len(images)),
        content=derived_content("append", table.content, other.content, classes or 0, len(images)),
        originals=None,
        groups=groups,
    )


def _with_channels(images: Pixels, channels: int) -> Pixels:
    """Grey as three equal channels, or three as their grey value by the usual weights (ITU-R 601)."""
    if images.shape[3] == channels:
        return images
    if channels == 3:
        return np.repeat(images, 3, axis=3)
    grey = images @ np.array([0.299, 0.587, 0.114])
    return np.asarray(np.rint(grey)[..., None], dtype=np.uint8)
