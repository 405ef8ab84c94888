"""The open-set setting: a pool, and a test set, in which some images are of none of the classes.

Such unknowns come from classes of the data set that are declared unknown, from a second data set, or both. Either way
their rows carry the label ``OUTSIDE`` in the table, and everything after that is the same: the split puts them into the
pool without a word, accuracy is that on the known classes, and the outlier score is judged by how well it tells the two
kinds of test images apart.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from unissl.data import DataConfig, Dataset, load
from unissl.data.dataset import require_two_classes
from unissl.data.images.decode import scale_arrays
from unissl.errors import UserError, did_you_mean
from unissl.splits import SplitConfig
from unissl.types import OOD, ImageTable


def load_data(data: DataConfig, split: SplitConfig) -> Dataset:
    """The data set, with the unknowns that the split asks for."""
    dataset = load(data)
    if split.ood_classes:
        dataset = mark_ood_classes(dataset, split.ood_classes)
    if split.ood_data is not None:
        size = dataset.train.images.shape[1]
        chosen = DataConfig(name=split.ood_data, root=split.ood_root, image_size=size, test_limit=data.test_limit)
        dataset = add_ood_images(dataset, load(chosen), split.ood_data_classes)
    return dataset


def mark_ood_classes(dataset: Dataset, unknown: tuple[str, ...]) -> Dataset:
    """Take the named classes out of the classes; their images stay as images of none."""
    names = dataset.train.class_names
    for name in unknown:
        if name not in names:
            raise UserError(f"{dataset.name} has no class {name!r} to be unknown.{did_you_mean(name, list(names))}")
    known = tuple(name for name in names if name not in unknown)
    require_two_classes(known, f"{dataset.name} without its unknown classes")
    number = np.array([known.index(name) if name in known else OOD for name in names], dtype=np.int64)

    def relabelled(table: ImageTable) -> ImageTable:
        labels = np.where(table.labels >= 0, number[table.labels], table.labels)
        return replace(table, labels=labels, class_names=known)

    test = None if dataset.test is None else relabelled(dataset.test)
    return replace(dataset, train=relabelled(dataset.train), test=test)


def add_ood_images(dataset: Dataset, others: Dataset, classes: int | None = None) -> Dataset:
    """Append the images of another data set, of all or of its first ``classes`` classes, as images of none of the
    classes, in this one's size and channels."""
    train = _appended(dataset.train, _of_first(others.train, classes))
    test = dataset.test
    if test is not None and others.test is not None:
        test = _appended(test, _of_first(others.test, classes))
    return replace(dataset, train=train, test=test)


def _of_first(table: ImageTable, classes: int | None) -> npt.NDArray[np.uint8]:
    if classes is None:
        return table.images
    return table.images[(table.labels >= 0) & (table.labels < classes)]


def _appended(table: ImageTable, images: npt.NDArray[np.uint8]) -> ImageTable:
    height, width, channels = table.images.shape[1:]
    fitted = _with_channels(images, channels)
    if fitted.shape[1:3] != (height, width):
        if height != width:
            raise UserError(
                f"Images of {height} x {width} pixels cannot take unknowns from a second data set; set data.image_size."
            )
        fitted = scale_arrays(fitted, height)
    return replace(
        table,
        images=np.concatenate([table.images, fitted]),
        labels=np.concatenate([table.labels, np.full(len(fitted), OOD)]),
        files=None if table.files is None else (*table.files, *[""] * len(fitted)),
        content=None,
        originals=None,
    )


def _with_channels(images: npt.NDArray[np.uint8], channels: int) -> npt.NDArray[np.uint8]:
    """Grey as three equal channels, or three as their grey value by the usual weights (ITU-R 601)."""
    if images.shape[3] == channels:
        return images
    if channels == 3:
        return np.repeat(images, 3, axis=3)
    grey = images @ np.array([0.299, 0.587, 0.114])
    return np.asarray(np.rint(grey)[..., None], dtype=np.uint8)
