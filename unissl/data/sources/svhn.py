"""SVHN, house numbers from street views (Netzer et al., 2011), in its official "cropped digits" Matlab files.

``X`` is uint8 (32, 32, 3, n) in Matlab's column-major order, ``y`` is (n, 1) with 1 to 9 for these digits and 10 for
the digit 0. One learns from train and extra, in this order: 604,388 images.

The 531,131 images of extra are 1.6 GB. They are unpacked into one array, and that is the only copy: what is written
to the cache is a view of it, piece by piece, and from then on the images are memory-mapped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unissl.data.dataset import DataConfig, Dataset
from unissl.data.formats.mat5 import Damaged, find_arrays, read_array
from unissl.data.sources.checksums import announce_part, verify_checksum
from unissl.data.sources.locate import DatasetLocation
from unissl.data.store.decode_to_cache import store_blocks
from unissl.errors import UserError, shortened
from unissl.types import ImageTable
from unissl.utils.cache import cached

TRAIN = ("train_32x32.mat", "extra_32x32.mat")
TEST = ("test_32x32.mat",)
PLACE = DatasetLocation(
    name="svhn",
    needed=(*TRAIN, *TEST),
    archives=(),
    inner="svhn",
    where="Put train_32x32.mat, extra_32x32.mat and test_32x32.mat of http://ufldl.stanford.edu/housenumbers into"
    " $UNISSL_DATA/svhn or a folder named with --root.",
)
CLASS_NAMES = tuple(str(digit) for digit in range(10))
SIDE = 32
IMAGES = {TRAIN: 604_388, TEST: 26_032}
MAX_IMAGES = 600_000
"""Of one file; extra has 531,131."""
MEAN, STD = (0.4380, 0.4440, 0.4730), (0.1751, 0.1771, 0.1744)


def load_svhn(config: DataConfig) -> Dataset:
    """Mirrored digits are no digits, but the published comparisons mirror them, so this does."""
    folder = PLACE.require(config.root)
    size = config.image_size or SIDE
    return Dataset("svhn", _part(folder, TRAIN, size), _part(folder, TEST, size), MEAN, STD, flip=True)


def _part(folder: Path, names: tuple[str, ...], size: int) -> ImageTable:
    paths = [folder / name for name in names]

    def build(target: Path) -> dict[str, Any]:
        for path in paths:
            verify_checksum(path)
        counts = [_count_images(path) for path in paths]
        labels = np.concatenate([_read_labels(path, count) for path, count in zip(paths, counts, strict=True)])
        announce_part("svhn", "images in " + " and ".join(names), len(labels), IMAGES[names])
        store_blocks(target, _images(paths, counts), size, labels)
        return {}

    entry = cached("svhn", paths, {"size": size}, build)
    return ImageTable(entry.arrays["images"], np.asarray(entry.arrays["labels"]), CLASS_NAMES)


def _count_images(path: Path) -> int:
    """From the headers alone."""
    with _intact(path):
        found = find_arrays(path)
    shape, kind = found.get("X", ((), ""))
    if shape[:3] != (SIDE, SIDE, 3) or len(shape) != 4 or kind != "uint8":
        raise UserError(f"{path} does not hold 32 x 32 colour images X; get the file anew.")
    if "y" not in found:  # images come first
        raise UserError(f"{path} has images and no labels y, so it was probably cut off; get the file anew.")
    if shape[3] > MAX_IMAGES or found["y"][1] == "other":
        raise UserError(f"{path} announces {shape[3]} images and labels of type {found['y'][1]}; get the file anew.")
    if found["y"][0] != (shape[3], 1):
        raise UserError(f"{path} has {shape[3]} images and labels of shape {found['y'][0]}; get the file anew.")
    return int(shape[3])


def _read_labels(path: Path, count: int) -> npt.NDArray[np.int64]:
    labels = _load(path, "y", (count, 1)).reshape(count)
    if not ((labels >= 1) & (labels <= 10)).all():  # before they are cut to whole numbers, which not all floats can be
        raise UserError(f"{path} has labels outside 1 to 10; get the file anew.")
    return labels.astype(np.int64) % 10


def _images(paths: list[Path], counts: list[int]) -> Iterator[npt.NDArray[np.uint8]]:
    """The images of one file after the other, (n, 32, 32, 3); nothing of the last one is kept for the next."""
    for path, count in zip(paths, counts, strict=True):
        pixels = _load(path, "X", (SIDE, SIDE, 3, count))
        if pixels.dtype != np.uint8:
            raise UserError(f"{path} has pixels that are no bytes; get the file anew.")
        yield np.moveaxis(pixels, 3, 0)


def _load(path: Path, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    with _intact(path):
        array = read_array(path, name)
    if array.shape != shape:  # the file was changed since its shapes were read
        raise UserError(f"{path} does not hold the {name} that it announces; get the file anew.")
    return array


@contextmanager
def _intact(path: Path) -> Iterator[None]:
    try:
        yield
    except (Damaged, OSError) as error:
        raise UserError(f"{path} is not an intact Matlab file ({shortened(str(error))}); get the file anew.") from None
