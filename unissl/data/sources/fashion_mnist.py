"""Fashion-MNIST in its official idx files (Xiao et al., 2017, https://arxiv.org/abs/1708.07747).

An idx file is big-endian: two zero bytes, the type (8 = uint8), the number of dimensions, each dimension as uint32,
then the values. The files may be gzipped or not.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unissl.data.dataset import DataConfig, Dataset
from unissl.data.images.resize import scale_arrays
from unissl.data.sources.locate import data_folders, not_found
from unissl.data.store.decode_to_cache import store_arrays, stored_table
from unissl.errors import UserError
from unissl.types import ImageTable
from unissl.utils.bounded_io import open_file, read_at_most
from unissl.utils.cache import cached

CLASS_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"
)  # fmt: skip
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
MAX_VALUES = 256 << 20
"""Five times the training images; a gzip file of a few kilobytes could announce, and hold, far more."""
WHERE = (
    "Install the Debian package dataset-fashion-mnist, or put the four idx .gz files of"
    " https://github.com/zalandoresearch/fashion-mnist into $UNISSL_DATA/fashion-mnist or a folder named with --root."
)


def load_fashion_mnist(config: DataConfig) -> Dataset:
    """60,000 training and 10,000 test images of clothing, 28 x 28 grey."""
    folder = find_fashion_mnist(config.root)
    if folder is None:
        raise not_found("fashion-mnist", config.root, WHERE)
    train, meta = _part(folder, "train", config.image_size)
    test, _ = _part(folder, "t10k", config.image_size)
    if train.images.shape[1:] != test.images.shape[1:]:
        raise UserError(f"The training and the test images in {folder} differ in size; download them again.")
    return Dataset("fashion-mnist", train, test, tuple(meta["mean"]), tuple(meta["std"]), flip=True)


def find_fashion_mnist(root: str | None) -> Path | None:
    """The folder that holds all four files: ``root`` if it is named, otherwise the usual folders."""
    # Files directly in $UNISSL_DATA may be those of MNIST, which have the same names.
    for folder in data_folders(root, "fashion-mnist")[-1:] + ([] if root else [DEBIAN_FOLDER]):
        if all(_file(folder, part, kind).is_file() for part in ("train", "t10k") for kind in ("images", "labels")):
            return folder
    return None


def _file(folder: Path, part: str, kind: str) -> Path:
    """The gzipped file, or the plain one if there is no such file."""
    plain = folder / f"{part}-{kind}-idx{3 if kind == 'images' else 1}-ubyte"
    packed = plain.with_name(f"{plain.name}.gz")
    return packed if packed.is_file() else plain


def _part(folder: Path, part: str, size: int | None) -> tuple[ImageTable, Any]:
    image_file, label_file = _file(folder, part, "images"), _file(folder, part, "labels")

    def build(target: Path) -> dict[str, Any]:
        images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
        if len(images) != len(labels):
            raise UserError(
                f"{image_file} holds {len(images)} images and {label_file} {len(labels)} labels; download both again."
            )
        if 0 in images.shape:
            raise UserError(f"{image_file} holds no pixels; download it again.")
        if len(labels) == 0 or labels.max() >= len(CLASS_NAMES):
            raise UserError(f"{label_file} does not hold Fashion-MNIST labels (0 to 9); download it again.")
        return store_arrays(target, scale_arrays(images[..., None], size), labels.astype(np.int64))

    entry = cached("idx", [image_file, label_file], {"size": size}, build)
    return stored_table(entry, CLASS_NAMES), entry.meta


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The uint8 array in an idx file, which must have the expected number of dimensions and exactly its length."""
    try:
        with open_file(path) as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file: gzip.GzipFile | io.BufferedReader = gzip.GzipFile(fileobj=raw) if packed else raw
            header = file.read(4 + 4 * dimensions)
            if header[:4] != bytes([0, 0, 8, dimensions]):
                raise UserError(f"{path} is not an idx file of {dimensions}-dimensional uint8 data; download it again.")
            if len(header) < 4 + 4 * dimensions:
                raise UserError(f"{path} ends within its header; download it again.")
            shape = struct.unpack(f">{dimensions}I", header[4:])
            announced = math.prod(shape)
            if announced > MAX_VALUES:
                raise UserError(f"{path} announces {announced} values, more than Fashion-MNIST has; download it again.")
            content = read_at_most(file, announced + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is a damaged gzip file ({error}); download it again.") from None
    if len(content) != announced:
        count = "more" if len(content) > announced else len(content)
        raise UserError(f"{path} announces {announced} values and holds {count}; download it again.")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
