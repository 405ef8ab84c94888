"""Probe images of one's own in a second or two: how many, how large, in colour or not."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from unissl.data.arrays import load_arrays
from unissl.data.dataset import DataConfig
from unissl.data.folder.index import FolderIndex, scan_folder
from unissl.data.images.decode import Encoded, Unreadable, decode, image_size
from unissl.data.sources.parquet import first_images
from unissl.errors import UserError
from unissl.utils.daemon_pool import DaemonPool

MAX_SAMPLED = 100
THUMBNAIL = 16


@dataclass(frozen=True)
class DatasetProbe:
    """Number of images, labels and classes, the median shorter side in pixels, whether any sampled image has colour,
    and the files with conflicting labels."""

    images: int
    labels: int
    classes: int
    side: int
    colour: bool
    conflicting: tuple[str, ...] = ()


def probe_dataset(config: DataConfig, index: FolderIndex | None = None) -> DatasetProbe:
    """Probe the folder or parquet file of ``config``; opens up to ``MAX_SAMPLED`` images.

    ``index`` is an earlier result of :func:`scan_folder` for the same ``config``.
    """
    if config.root is None:
        raise UserError("Give the folder or file that holds the images with --images or --root.")
    if config.name == "arrays":
        table = load_arrays(config).train
        known, pixels = table.labels[table.labels >= 0], table.images[:MAX_SAMPLED]
        side, colour = min(table.images.shape[1:3]), bool((pixels != pixels[..., :1]).any())
        return DatasetProbe(len(table), len(known), len(np.unique(known)), side, colour)
    index = index or scan_folder(config)
    if index is None:
        return _probe(*first_images(Path(config.root), MAX_SAMPLED))
    paths = index.paths
    rows = np.linspace(0, len(paths) - 1, min(MAX_SAMPLED, len(paths))).astype(int)
    probe = _probe(index.labels, (paths[row] for row in rows))
    return replace(probe, conflicting=tuple(file for files in index.issues.values() for file in files))


def _probe(labels: np.ndarray[tuple[int], np.dtype[np.int64]], images: Iterable[Encoded]) -> DatasetProbe:
    sides, colour = [], False
    with DaemonPool(1) as pool:  # a signal interrupts waiting for a decoder, never the decoder itself
        for image in images:
            try:
                with warnings.catch_warnings(action="ignore"):  # Pillow warns about unusual metadata
                    sides.append(min(image_size(image)))
                    pixels = pool.submit(decode, image, THUMBNAIL, 3).result()
            except Unreadable:
                continue  # the loader reports all of them
            colour = colour or bool((pixels != pixels[..., :1]).any())
    known = labels[labels >= 0]
    side = int(np.median(sides)) if sides else THUMBNAIL
    return DatasetProbe(len(labels), len(known), len(np.unique(known)), side, colour)
