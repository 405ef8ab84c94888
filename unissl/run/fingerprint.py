"""Whether the data of a run have changed: its split, and hashes of its images and labels, are compared at a resume.

The pixel hash was computed when the images were decoded into the cache, and costs nothing here. A file that changes
during a run does not affect that run, which uses the decoded images. At the next start its new size or time makes a new
cache entry, whose hash tells a changed image from one that was only touched.
"""

from __future__ import annotations

import hashlib

import numpy as np

from unissl.data import Dataset
from unissl.errors import UserError
from unissl.run_folder import RunFolder
from unissl.splits import read_split, write_split
from unissl.types import ImageTable, Split
from unissl.utils.atomic import read_json, write_json
from unissl.utils.mmap_rows import row_blocks

BLOCK = 1024
"""Images hashed at a time."""


def save_fingerprint(folder: RunFolder, dataset: Dataset) -> None:
    write_json(folder.data_fingerprint, dataset_fingerprint(dataset))


def verify_data(folder: RunFolder, split: Split, dataset: Dataset) -> None:
    """Raise if rows, labels or images are not those that the run was started with."""
    if not folder.split.exists():  # interrupted between its first two files
        write_split(split, folder.split)
    elif not same_split(split, read_split(folder.split, len(dataset.train))):
        raise data_changed_error(folder)
    verify_fingerprint(folder, dataset)


def same_split(one: Split, other: Split) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("labelled", "labels", "unlabelled", "heldout", "heldout_labels")
    )


def verify_fingerprint(folder: RunFolder, dataset: Dataset) -> None:
    """Refuse other images than those the run was started on; writes the hashes if the run stopped before it had."""
    if not folder.data_fingerprint.exists():
        save_fingerprint(folder, dataset)
        return
    stored, current = read_json(folder.data_fingerprint), dataset_fingerprint(dataset)
    if stored != current:
        parts = [name for name in current if not isinstance(stored, dict) or stored.get(name) != current[name]]
        raise data_changed_error(folder, " and ".join(parts or ["other"]))


def data_changed_error(folder: RunFolder, parts: str = "training") -> UserError:
    return UserError(
        f"The {parts} data have changed since {folder.path} was started; put the old files back, or start a new run "
        "with another --out."
    )


def dataset_fingerprint(dataset: Dataset) -> dict[str, str]:
    """One hash for the images and labels of each part."""
    hashes = {"training": table_fingerprint(dataset.train)}
    return hashes if dataset.test is None else hashes | {"test": table_fingerprint(dataset.test)}


def table_fingerprint(table: ImageTable) -> str:
    """The hash of shape, class names, pixels and labels."""
    digest = hashlib.sha256(repr((table.images.shape, table.class_names)).encode())
    digest.update((table.content or _hash_pixels(table)).encode())
    digest.update(np.ascontiguousarray(table.labels).data)
    return digest.hexdigest()


def _hash_pixels(table: ImageTable) -> str:
    digest = hashlib.sha256()
    for block in row_blocks(table.images, BLOCK):
        digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()
