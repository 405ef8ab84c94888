"""A first look at images of one's own, of a second or two: how many, how large, in colour or not."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from unissl.data.dataset import DataConfig
from unissl.data.folder.index import index_folder
from unissl.data.images.decode import Encoded, Unreadable, decode, image_size
from unissl.data.sources.parquet import first_images
from unissl.errors import UserError

MAX_SAMPLED = 100
THUMBNAIL = 16


@dataclass(frozen=True)
class DatasetProbe:
    """Images and labels in number, the usual shorter side in pixels, whether any of those looked at has colour, and
    the files that have several labels."""

    images: int
    labels: int
    classes: int
    side: int
    colour: bool
    contradicted: tuple[str, ...] = ()


def probe_dataset(config: DataConfig) -> DatasetProbe:
    """The folder or the parquet file of ``config``, of which some images are opened."""
    if config.root is None:
        raise UserError("Name the folder or file that holds the images with --images or --root.")
    if config.name == "parquet":
        labels, some = first_images(Path(config.root), MAX_SAMPLED)
        return _of(labels, some)
    layout = index_folder(Path(config.root), config.labels, Path(config.test) if config.test is not None else None)
    chosen = np.linspace(0, len(layout.files) - 1, min(MAX_SAMPLED, len(layout.files))).astype(int)
    seen = _of(layout.labels, (os.path.join(config.root, layout.files[row]) for row in chosen))
    return replace(seen, contradicted=tuple(file for files in layout.remarks.values() for file in files))


def _of(labels: np.ndarray[tuple[int], np.dtype[np.int64]], some: Iterable[Encoded]) -> DatasetProbe:
    sides, colour = [], False
    for image in islice(some, MAX_SAMPLED):
        with warnings.catch_warnings():  # Pillow warns about odd metadata
            warnings.simplefilter("ignore")
            try:
                sides.append(min(image_size(image)))
                pixels = decode(image, THUMBNAIL, 3)
            except Unreadable:
                continue  # said later, of all of them
        colour = colour or bool((pixels != pixels[..., :1]).any())
    known = labels[labels >= 0]
    side = int(np.median(sides)) if sides else THUMBNAIL
    return DatasetProbe(len(labels), len(known), len(np.unique(known)), side, colour)
