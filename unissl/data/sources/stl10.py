"""STL-10 (Coates et al., 2011) in its official binary files: 5,000 labelled images, 8,000 test images, and 100,000
unlabelled images without any ground truth.

A file of the published length must have the published checksum. Shorter files of the same layout are read as a subset.

An image is 3 x 96 x 96 bytes: all red values, all green, all blue, each column after column. Labels are one byte, 1
to 10. Images are scaled to 32 x 32, as the published comparisons do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from unissl.data.dataset import DataConfig, Dataset
from unissl.data.sources.checksums import report_partial, require_checksum
from unissl.data.sources.locate import DatasetLocation
from unissl.data.store.decode_to_cache import store_blocks, stored_table
from unissl.errors import UserError
from unissl.types import UNLABELLED, ImageTable, Labels, Pixels
from unissl.utils.bounded_io import open_file
from unissl.utils.cache import cached

LOCATION = DatasetLocation(
    name="stl10",
    needed=("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "unlabeled_X.bin"),
    archives=("stl10_binary.tar.gz",),
    inner="stl10_binary",
    where="Unpack stl10_binary.tar.gz of https://cs.stanford.edu/~acoates/stl10 in $UNISSL_DATA or in a folder named"
    " with --root.",
)
CLASS_NAMES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
SIDE, SCALED = 96, 32
BYTES = 3 * SIDE * SIDE
CHUNK = 512
IMAGES = {"train": 5_000, "test": 8_000, "unlabeled": 100_000}
MEAN, STD = (112.4 / 255, 109.1 / 255, 98.6 / 255), (68.4 / 255, 66.6 / 255, 68.5 / 255)


def load_stl10(config: DataConfig) -> Dataset:
    """Labels are drawn from the 5,000 (4 per class by default); the pool is exactly the 100,000 unlabelled images."""
    folder = LOCATION.require(config.root)
    size = config.image_size or SCALED
    train, test = _load_part(folder, ("train", "unlabeled"), size), _load_part(folder, ("test",), size)
    return Dataset("stl10", train, test, MEAN, STD, flip=True, split={"labels_per_class": 4})


def _load_part(folder: Path, parts: tuple[str, ...], size: int) -> ImageTable:
    image_files = [folder / f"{part}_X.bin" for part in parts]
    label_files = [folder / f"{part}_y.bin" for part in parts if part != "unlabeled"]

    def build(target: Path) -> dict[str, Any]:
        labels = []
        for part, path in zip(parts, image_files, strict=True):
            count = _count_images(path)
            if count == IMAGES[part]:
                require_checksum(path, path.name)
            report_partial("stl10", f"images in {path.name}", count, IMAGES[part])
            labels.append(_read_labels(folder, part, count))
        store_blocks(target, _images(image_files), size, np.concatenate(labels))
        return {}

    entry = cached("stl10", [*image_files, *label_files], {"size": size}, build)
    return stored_table(entry, CLASS_NAMES)


def _count_images(path: Path) -> int:
    length = path.stat().st_size
    if length == 0 or length % BYTES:
        raise UserError(
            f"{path} has {length} bytes, which is not a whole number of images of {BYTES} bytes; download it again."
        )
    return length // BYTES


def _images(paths: list[Path]) -> Iterator[Pixels]:
    """The images of all files in blocks (n, 96, 96, 3); together they have 2.8 GB."""
    for path in paths:
        with open_file(path) as file:
            while block := file.read(CHUNK * BYTES):
                yield np.frombuffer(block, dtype=np.uint8).reshape(-1, 3, SIDE, SIDE).transpose(0, 3, 2, 1)


def _read_labels(folder: Path, part: str, count: int) -> Labels:
    """Classes 0 to 9, or ``UNLABELLED`` for the part without a label file."""
    if part == "unlabeled":
        return np.full(count, UNLABELLED, dtype=np.int64)
    path = folder / f"{part}_y.bin"
    with open_file(path) as file:
        labels = np.frombuffer(file.read(count + 1), dtype=np.uint8).astype(np.int64)
    if len(labels) != count:
        raise UserError(f"{path} has {path.stat().st_size} labels for {count} images; download both files again.")
    if count == IMAGES[part]:
        require_checksum(path, path.name)
    if not ((labels >= 1) & (labels <= 10)).all():
        raise UserError(f"{path} has labels outside 1 to 10; download it again.")
    return labels - 1
