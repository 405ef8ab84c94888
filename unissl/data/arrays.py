"""Data sets from numpy arrays, among them scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unissl.data.dataset import (
    DataConfig,
    Dataset,
    channel_mean_std,
    choose_holdout,
    numbered_classes,
    require_two_classes,
)
from unissl.data.images.resize import scale_arrays, to_pil
from unissl.data.sources.npz import DamagedArray, read_array
from unissl.errors import UserError
from unissl.types import UNLABELLED, ImageTable
from unissl.utils.bounded_io import parse_json

DIGITS_HOLDOUT = 500


def load_digits(config: DataConfig) -> Dataset:
    """The 1,797 handwritten digits of scikit-learn, 8 x 8 grey; a fixed random 500 of them are the test set."""
    try:
        from sklearn.datasets import load_digits as load_sklearn_digits
    except ImportError:
        raise UserError("The digits come with scikit-learn; install it with: pip install scikit-learn.") from None
    ink, labels = load_sklearn_digits(return_X_y=True)  # ink is 0..16, (1797, 64)
    images = np.rint(ink.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    images, labels = scale_arrays(images, config.image_size), labels.astype(np.int64)
    class_names = tuple(str(digit) for digit in range(10))
    count = config.test_holdout or DIGITS_HOLDOUT
    if count >= len(labels):
        raise UserError(
            f"--holdout {count} (data.test_holdout) leaves nothing to train on: there are {len(labels)} labelled "
            "images; choose a smaller number."
        )
    # Not stratified: recorded curves and tables were made with this draw.
    test_rows = np.sort(np.random.RandomState(0).permutation(len(labels))[:count])
    train_rows = np.setdiff1d(np.arange(len(labels)), test_rows)
    test = (images[test_rows], labels[test_rows])
    return from_arrays(images[train_rows], labels[train_rows], class_names, test, "digits", flip=False)


def load_arrays(config: DataConfig) -> Dataset:
    """An .npz file with ``images``, uint8 (n, h, w) or (n, h, w, channels), ``labels``, -1 for unlabelled, and
    ``class_names``, the UTF-8 bytes of a JSON list."""
    if config.root is None:
        raise UserError('The data "arrays" are an .npz file; name it with --root.')
    path = Path(config.root)
    try:
        images, labels, names = (read_array(path, key) for key in ("images", "labels", "class_names"))
        class_names = tuple(str(name) for name in parse_json(names.astype(np.uint8).tobytes().decode()))
    except (DamagedArray, ValueError, TypeError) as error:
        raise UserError(f"{path} does not hold images and labels ({error}); start the run again.") from None
    require_two_classes(class_names, str(path))
    given = checked_images(images, "images")
    pixels, test = scale_arrays(given, config.image_size), None
    if config.test_holdout is not None:
        rows = choose_holdout(labels, config.test_holdout)
        test = (pixels[rows], labels[rows])
        rest = np.setdiff1d(np.arange(len(labels)), rows)
        given, pixels, labels = given[rest], pixels[rest], labels[rest]
    dataset = from_arrays(pixels, labels, class_names, test, flip=pixels.shape[3] == 3)
    if config.image_size is None:
        return dataset
    return replace(dataset, train=replace(dataset.train, originals=lambda: map(to_pil, given)))


def from_arrays(
    images: npt.ArrayLike,
    labels: npt.ArrayLike,
    class_names: Sequence[str] | None = None,
    test: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    name: str = "arrays",
    flip: bool = True,
) -> Dataset:
    """A data set from uint8 images (n, h, w) or (n, h, w, channels) and int labels with -1 for unlabelled.

    ``test`` is a pair of images and labels of the same kind. Class names default to "0", "1", ...
    """
    pixels, classes = checked_images(images, "images"), _checked_labels(labels, "labels")
    names = numbered_classes(classes, "the label array") if class_names is None else tuple(class_names)
    require_two_classes(names, "the label array")
    train = _table(pixels, classes, names, "images")
    test_table = None
    if test is not None:
        pixels, classes = checked_images(test[0], "test images"), _checked_labels(test[1], "test labels")
        test_table = _table(pixels, classes, names, "test images")
        if test_table.images.shape[1:] != train.images.shape[1:]:
            raise UserError(
                f"Test images are {test_table.images.shape[1:]} and training images {train.images.shape[1:]}"
                " (height, width, channels); bring them to one shape."
            )
    mean, std = channel_mean_std(train.images)
    return Dataset(name, train, test_table, mean, std, flip)


def _table(
    images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], class_names: tuple[str, ...], what: str
) -> ImageTable:
    if len(images) != len(labels):
        raise UserError(
            f"There are {len(images)} {what} but {len(labels)} labels; give one per image (-1: unlabelled)."
        )
    if labels.min() < UNLABELLED or labels.max() >= len(class_names):
        raise UserError(
            f"Labels of {what} run from {labels.min()} to {labels.max()}; use 0 to {len(class_names) - 1},"
            " and -1 for unlabelled."
        )
    return ImageTable(images, labels, class_names)


def checked_images(images: npt.ArrayLike, what: str) -> npt.NDArray[np.uint8]:
    """uint8 (n, h, w, channels), one or three of them."""
    array: npt.NDArray[Any] = np.asarray(images)
    if array.dtype != np.uint8:
        raise UserError(
            f"The {what} are {array.dtype}; give uint8 values from 0 to 255,"
            " for example (x * 255).round().astype('uint8') for x in 0..1."
        )
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or array.shape[-1] not in (1, 3) or 0 in array.shape:
        raise UserError(f"The {what} have shape {array.shape}; give (n, h, w), (n, h, w, 1) or (n, h, w, 3), n > 0.")
    return array


def _checked_labels(labels: npt.ArrayLike, what: str) -> npt.NDArray[np.int64]:
    array: npt.NDArray[Any] = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(f"The {what} are {array.dtype} of shape {array.shape}; give one whole number per image.")
    return array.astype(np.int64)
