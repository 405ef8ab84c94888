"""What images a run was started on, so that a run is not continued on others.

The hashes were made when the images were decoded into the cache, and cost nothing here. A file that changes under a
running job changes nothing for that job, which works on the decoded images. At the next start its new size or time
makes a new cache entry, and the hash of that tells a changed image from one that was only touched.
"""

from __future__ import annotations

import hashlib

import numpy as np

from unissl.data import Dataset
from unissl.errors import UserError
from unissl.run_folder import RunFolder
from unissl.types import ImageTable
from unissl.utils.atomic import read_json, write_json

BLOCK = 1024
"""Images hashed at a time."""


def save_fingerprint(folder: RunFolder, dataset: Dataset) -> None:
    write_json(folder.data_fingerprint, dataset_fingerprint(dataset))


def verify_fingerprint(folder: RunFolder, dataset: Dataset) -> None:
    """Refuse other images than the run was started on; where it was cut off before they were noted, note them."""
    if not folder.data_fingerprint.exists():
        save_fingerprint(folder, dataset)
        return
    stored, found = read_json(folder.data_fingerprint), dataset_fingerprint(dataset)
    if stored != found:
        parts = [name for name in found if not isinstance(stored, dict) or stored.get(name) != found[name]]
        raise data_changed_error(folder, " and ".join(parts or ["other"]))


def data_changed_error(folder: RunFolder, parts: str = "training") -> UserError:
    return UserError(
        f"The {parts} data have changed since {folder.path} was started; put the old files back, or start a new run "
        "with another --out."
    )


def dataset_fingerprint(dataset: Dataset) -> dict[str, str]:
    """One hash for the images and labels of each part."""
    found = {"training": table_fingerprint(dataset.train)}
    return found if dataset.test is None else found | {"test": table_fingerprint(dataset.test)}


def table_fingerprint(table: ImageTable) -> str:
    digest = hashlib.sha256(repr((table.images.shape, table.class_names)).encode())
    digest.update((table.content or _hash_of_pixels(table)).encode())
    digest.update(np.ascontiguousarray(table.labels).data)
    return digest.hexdigest()


def _hash_of_pixels(table: ImageTable) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(table), BLOCK):
        digest.update(np.ascontiguousarray(table.images[start : start + BLOCK]).data)
    return digest.hexdigest()
