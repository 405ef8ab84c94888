"""STL-10 (Coates et al., 2011) in its official binary files: 5,000 labelled images, 8,000 to test on, and 100,000
without a label, whose truth nobody has.

An image is 3 x 96 x 96 bytes: all red values, all green, all blue, each column after column. Labels are one byte, 1
to 10. Images are scaled to 32 x 32, as the published comparisons do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unissl.data.cache import cached
from unissl.data.dataset import DataConfig, Dataset
from unissl.data.places import Place
from unissl.data.published import announce_part, refuse_altered
from unissl.data.store import store_blocks
from unissl.errors import UserError
from unissl.types import UNKNOWN, ImageTable

PLACE = Place(
    name="stl10",
    needed=("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "unlabeled_X.bin"),
    archives=("stl10_binary.tar.gz",),
    inner="stl10_binary",
    where="Unpack stl10_binary.tar.gz of https://cs.stanford.edu/~acoates/stl10 in $UNISSL_DATA or in a folder named"
    " with --root.",
)
CLASS_NAMES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
SIDE, SCALED = 96, 32
IMAGES = {"train": 5_000, "test": 8_000, "unlabeled": 100_000}
MEAN, STD = (112.4 / 255, 109.1 / 255, 98.6 / 255), (68.4 / 255, 66.6 / 255, 68.5 / 255)


def load_stl10(config: DataConfig) -> Dataset:
    """Labels are drawn from the 5,000 (4 per class unless said otherwise); the pool is the 100,000 and nothing else."""
    folder = PLACE.require(config.root)
    size = config.size or SCALED
    train, test = _part(folder, ("train", "unlabeled"), size), _part(folder, ("test",), size)
    return Dataset("stl10", train, test, MEAN, STD, flip=True, split={"labels_per_class": 4})


def _part(folder: Path, parts: tuple[str, ...], size: int) -> ImageTable:
    image_files = [folder / f"{part}_X.bin" for part in parts]
    label_files = [folder / f"{part}_y.bin" for part in parts if part != "unlabeled"]

    def build(target: Path) -> dict[str, Any]:
        for path in (*image_files, *label_files):
            refuse_altered(path)
        images = [_read_images(path) for path in image_files]
        labels = [
            np.full(len(some), UNKNOWN) if part == "unlabeled" else _read_labels(folder / f"{part}_y.bin", len(some))
            for part, some in zip(parts, images, strict=True)
        ]
        for part, some in zip(parts, images, strict=True):
            announce_part("stl10", f"images in {part}_X.bin", len(some), IMAGES[part])
        store_blocks(target, images, size, np.concatenate(labels))
        return {}

    entry = cached("stl10", [*image_files, *label_files], {"size": size}, build)
    return ImageTable(entry.arrays["images"], np.asarray(entry.arrays["labels"]), CLASS_NAMES)


def _read_images(path: Path) -> npt.NDArray[np.uint8]:
    """The images (n, 96, 96, 3) of a file, memory-mapped."""
    length, one = path.stat().st_size, 3 * SIDE * SIDE
    if length == 0 or length % one:
        raise UserError(
            f"{path} has {length} bytes, which is not a whole number of images of {one} bytes; get the file anew."
        )
    columns = np.memmap(path, dtype=np.uint8, mode="r", shape=(length // one, 3, SIDE, SIDE))
    return columns.transpose(0, 3, 2, 1)


def _read_labels(path: Path, count: int) -> npt.NDArray[np.int64]:
    labels = np.frombuffer(path.read_bytes(), dtype=np.uint8).astype(np.int64)
    if len(labels) != count:
        raise UserError(f"{path} has {len(labels)} labels for {count} images; get the files anew.")
    if not ((labels >= 1) & (labels <= 10)).all():
        raise UserError(f"{path} has labels outside 1 to 10; get the file anew.")
    return labels - 1
