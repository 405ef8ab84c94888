"""Food-101 (Bossard et al., 2014) from its unpacked archive: images/<class>/*.jpg and the lists in meta/.

All images are squeezed to a square of floor(32 / 0.875) = 36 pixels (bicubic), and views are 32 x 32 crops without
padding: random in training, in the centre at test. Other sizes work alike: 64 means 73, cropped to 64.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unissl.data.dataset import DataConfig, Dataset, require_two_classes
from unissl.data.images.resize import CenterCrop
from unissl.data.sources.checksums import report_partial
from unissl.data.sources.locate import DatasetLocation
from unissl.data.store.decode_to_cache import store_encoded, stored_table
from unissl.errors import UserError, shortened
from unissl.types import ImageTable
from unissl.utils.bounded_io import read_text
from unissl.utils.cache import cached, save_array

LOCATION = DatasetLocation(
    name="food101",
    needed=("images", "meta/classes.txt", "meta/train.txt", "meta/test.txt"),
    archives=("food-101.tar.gz",),
    inner="food-101",
    where="Unpack food-101.tar.gz of https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101 in $UNISSL_DATA or in a"
    " folder named with --root.",
)
SIDE, CROP_RATIO = 32, 0.875
FIT = CenterCrop(Image.Resampling.BICUBIC, squeeze=True, coarse=False)
IMAGES = {"train": 75_750, "test": 25_250}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load_food101(config: DataConfig) -> Dataset:
    folder = LOCATION.require(config.root)
    crop = config.image_size or SIDE
    stored = math.floor(crop / CROP_RATIO)
    class_names = tuple(_lines(folder / "meta" / "classes.txt"))
    require_two_classes(class_names, str(folder / "meta" / "classes.txt"))
    if len(set(class_names)) < len(class_names) or not all(_is_plain(name) for name in class_names):
        raise UserError(
            f"{folder / 'meta' / 'classes.txt'} has names that are no folders; download food-101.tar.gz again."
        )
    train, test = (_load_part(folder, part, class_names, stored) for part in ("train", "test"))
    return Dataset("food101", train, test, MEAN, STD, flip=True, crop=crop)


def _load_part(folder: Path, part: str, class_names: tuple[str, ...], size: int) -> ImageTable:
    """The images of a list, in its order. The cache key has the modification times of the class folders, which change
    when an image is added or unpacked again: reading those of 100,000 files would take too long at every start."""
    list_file = folder / "meta" / f"{part}.txt"
    class_folders = [folder / "images" / name for name in class_names]

    def build(target: Path) -> dict[str, Any]:
        names = _lines(list_file)
        number = {name: c for c, name in enumerate(class_names)}
        for line, name in enumerate(names, 1):
            if name.partition("/")[0] not in number or not _is_plain(name.partition("/")[2]):
                raise UserError(
                    f"Line {line} of {list_file} names {shortened(name)!r}, of no class in classes.txt;"
                    " download both again."
                )
        report_partial("food101", f"images in {part}.txt", len(names), IMAGES[part])
        save_array(target / "labels.npy", np.array([number[name.partition("/")[0]] for name in names], dtype=np.int64))
        paths = [str(folder / "images" / f"{name}.jpg") for name in names]
        return store_encoded(target, enumerate(paths), len(paths), size, 3, paths.__getitem__, FIT)

    entry = cached("food101", [folder / "meta" / "classes.txt", list_file, *class_folders], {"size": size}, build)
    return stored_table(entry, class_names)


def _is_plain(name: str) -> bool:
    """Whether a name is a plain file name without any folder."""
    return name.isprintable() and len(name) < 256 and name not in ("", ".", "..") and not {"/", "\\"} & set(name)


def _lines(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    except (OSError, ValueError):
        raise UserError(f"{path} cannot be read as a list of names; download food-101.tar.gz again.") from None
    if not lines:
        raise UserError(f"{path} is empty; download food-101.tar.gz again.")
    return lines
