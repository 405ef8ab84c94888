"""SVHN, house numbers from street views (Netzer et al., 2011), in its official "cropped digits" Matlab files.

``X`` is uint8 (32, 32, 3, n) in Matlab's column-major order, ``y`` is (n, 1) with 1 to 9 for these digits and 10 for
the digit 0. The training set is train followed by extra: 604,388 images.

The 531,131 images of extra are 1.6 GB. They are unpacked into one array, which is written to the cache in chunks
without a second copy; from then on the images are memory-mapped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unissl.data.dataset import DataConfig, Dataset
from unissl.data.sources.checksums import require_checksum
from unissl.data.sources.locate import DatasetLocation
from unissl.data.store.decode_to_cache import store_blocks, stored_table
from unissl.types import ImageTable
from unissl.utils.cache import cached

TRAIN = ("train_32x32.mat", "extra_32x32.mat")
TEST = ("test_32x32.mat",)
LOCATION = DatasetLocation(
    name="svhn",
    needed=(*TRAIN, *TEST),
    archives=(),
    inner="svhn",
    where="Put train_32x32.mat, extra_32x32.mat and test_32x32.mat of http://ufldl.stanford.edu/housenumbers into"
    " $UNISSL_DATA/svhn or a folder named with --root.",
)
CLASS_NAMES = tuple(str(digit) for digit in range(10))
SIDE = 32
MEAN, STD = (0.4380, 0.4440, 0.4730), (0.1751, 0.1771, 0.1744)


def load_svhn(config: DataConfig) -> Dataset:
    """A mirrored digit is no digit, but the published comparisons flip SVHN, so this does, too."""
    folder = LOCATION.require(config.root)
    size = config.image_size or SIDE
    return Dataset("svhn", _load_part(folder, TRAIN, size), _load_part(folder, TEST, size), MEAN, STD, flip=True)


def _load_part(folder: Path, names: tuple[str, ...], size: int) -> ImageTable:
    paths = [folder / name for name in names]

    def build(target: Path) -> dict[str, Any]:
        for path in paths:
            require_checksum(path, path.name)
        labels = np.concatenate([_read_array(path, "y").reshape(-1) for path in paths]).astype(np.int64) % 10
        blocks = (np.moveaxis(_read_array(path, "X"), 3, 0) for path in paths)
        store_blocks(target, blocks, size, labels)
        return {}

    entry = cached("svhn", paths, {"size": size}, build)
    return stored_table(entry, CLASS_NAMES)


def _read_array(path: Path, name: str) -> Any:
    from scipy.io import loadmat  # slow to import

    return loadmat(path, variable_names=[name])[name]
