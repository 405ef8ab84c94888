"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) from the official "python version" archives, packed or unpacked.

Their batches are pickles, which are read without running anything in them (:mod:`unissl.data.formats.batch_pickle`).
"""

from __future__ import annotations

import dataclasses
import gzip
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unissl.data.dataset import DataConfig, Dataset, data_folder
from unissl.data.formats.batch_pickle import read_batch, values
from unissl.data.formats.tar import members
from unissl.data.images.decode import scale_arrays
from unissl.data.sources.checksums import verify_checksum
from unissl.data.sources.parquet import find_parquet, load_parquet
from unissl.data.store.decode_to_cache import store_arrays
from unissl.errors import UserError
from unissl.types import ImageTable
from unissl.utils.cache import cached


@dataclass(frozen=True)
class Release:
    """The names in one official archive, and the constants that its images are normalised with."""

    name: str
    classes: int
    archive: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    label_key: bytes
    names_key: bytes
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def where(self) -> str:
        return (
            f"Put {self.archive} of https://www.cs.toronto.edu/~kriz/cifar.html (or the folder {self.folder})"
            " into $UNISSL_DATA or name it with --root."
        )


CIFAR10 = Release(
    name="cifar10",
    classes=10,
    archive="cifar-10-python.tar.gz",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test=("test_batch",),
    meta="batches.meta",
    label_key=b"labels",
    names_key=b"label_names",
    mean=(0.485, 0.456, 0.406),  # the ImageNet values, as in the published comparisons
    std=(0.229, 0.224, 0.225),
)
CIFAR100 = Release(
    name="cifar100",
    classes=100,
    archive="cifar-100-python.tar.gz",
    folder="cifar-100-python",
    train=("train",),
    test=("test",),
    meta="meta",
    label_key=b"fine_labels",
    names_key=b"fine_label_names",
    mean=(129.3 / 255, 124.1 / 255, 112.4 / 255),
    std=(68.2 / 255, 65.4 / 255, 70.4 / 255),
)


def load_cifar(config: DataConfig, release: Release) -> Dataset:
    """The data set from its archive or unpacked folder; also from parquet files in the same place."""
    place = find_cifar(config.root, release)
    if place is None:
        looked = f" (there is nothing in {config.root})" if config.root else ""
        raise UserError(f"The data set {release.name} was not found{looked}. {release.where}")
    if not _is_official(place, release):
        dataset = load_parquet(config.model_copy(update={"root": str(place)}))
        if dataset.train.num_classes != release.classes:
            raise UserError(
                f"{place} has {dataset.train.num_classes} classes, so it is not {release.name}; check --root."
            )
        return dataclasses.replace(dataset, name=release.name, mean=release.mean, std=release.std)
    train = _part(place, release, release.train, config.image_size)
    test = _part(place, release, release.test, config.image_size)
    return Dataset(release.name, train, test, release.mean, release.std, flip=True)


def find_cifar(root: str | None, release: Release) -> Path | None:
    """The archive, the folder of batches, or a place with parquet files: in ``root`` or in $UNISSL_DATA."""
    data = data_folder()
    bases = [Path(root)] if root else [data, data / release.name] if data else []
    for base in bases:
        for place in (base, base / release.folder, base / release.archive):
            if _is_official(place, release):
                return place
        if (root or base.name == release.name) and find_parquet(base):
            return base
    return None


def _is_official(place: Path, release: Release) -> bool:
    return (place.is_file() and place.suffix != ".parquet") or (place / release.train[0]).is_file()


def _part(place: Path, release: Release, batches: tuple[str, ...], size: int | None) -> ImageTable:
    wanted = (*batches, release.meta)
    sources = [place] if place.is_file() else [place / name for name in wanted]

    def build(target: Path) -> dict[str, Any]:
        verify_checksum(place)
        contents = _read_archive(place, wanted) if place.is_file() else _read_folder(place, wanted)
        names = _field(contents[release.meta], release.names_key, place, release.meta)
        class_names = _class_names(names, release, place)
        parts = [_images_and_labels(contents[b], release, len(class_names), place, b) for b in batches]
        images = np.concatenate([images for images, _ in parts])
        labels = np.concatenate([labels for _, labels in parts])
        return {"class_names": class_names, **store_arrays(target, scale_arrays(images, size), labels)}

    entry = cached("cifar", sources, {"release": release.name, "batches": batches, "size": size}, build)
    labels = np.asarray(entry.arrays["labels"])
    names = tuple(entry.meta["class_names"])
    return ImageTable(entry.arrays["images"], labels, names, content=entry.hashes["images"])


def _class_names(names: Any, release: Release, place: Path) -> list[str]:
    """As many different names as the release has classes."""
    texts = []
    if isinstance(names, list):
        texts = [name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names]
    if len(texts) != release.classes or len(set(texts)) != release.classes or not all(t.isprintable() for t in texts):
        raise UserError(
            f"{release.meta} in {place} does not name {release.classes} classes; get {release.archive} anew."
        )
    return texts


def _images_and_labels(
    batch: Any, release: Release, num_classes: int, place: Path, name: str
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Rows of 3072 bytes (all red values, all green, all blue) as (n, 32, 32, 3), with their labels."""
    data = _field(batch, b"data", place, name)
    labels = _field(batch, release.label_key, place, name)
    if (
        not isinstance(data, np.ndarray)
        or data.dtype != np.uint8
        or data.ndim != 2
        or data.shape[1] != 3072
        or len(data) == 0
    ):
        raise UserError(f"The batch {name} in {place} does not hold 32 x 32 RGB images; get {release.archive} anew.")
    if not isinstance(labels, list) or len(labels) != len(data):
        found = len(labels) if isinstance(labels, list) else "no"
        raise UserError(
            f"The batch {name} in {place} has {len(data)} images and {found} labels; get {release.archive} anew."
        )
    if not all(type(label) is int and 0 <= label < num_classes for label in labels):
        raise UserError(f"The batch {name} in {place} has labels outside 0 to {num_classes - 1}; get it anew.")
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(labels, dtype=np.int64)


def _field(batch: Any, key: bytes, place: Path, name: str) -> Any:
    if not isinstance(batch, dict) or not {key, key.decode()} & batch.keys():
        raise UserError(f"{name} in {place} has no field {key.decode()!r}, so it is no official batch; get it anew.")
    return batch[key] if key in batch else batch[key.decode()]


def _read_folder(place: Path, names: tuple[str, ...]) -> dict[str, Any]:
    contents = {}
    for name in names:
        with (place / name).open("rb") as file:
            contents[name] = read_batch(file, f"{place / name}")
    return contents


def _read_archive(place: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """The named members, read in the order in which they stand and without unpacking anything to disk."""
    contents = {}
    with place.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    opener = gzip.open if zipped else open
    try:
        with opener(place, "rb") as stream:
            for name, content in members(stream, names):
                contents[name] = values(content, f"{name} in {place}")
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile):
        raise UserError(f"{place} is not an intact tar.gz archive; get it anew.") from None
    missing = [name for name in names if name not in contents]
    if missing:
        raise UserError(f"{place} holds no {', '.join(missing)}, so it is not the official archive; get it anew.")
    return contents
