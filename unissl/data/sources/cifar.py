"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) from the official "python version" archives, packed or unpacked.

The batches are pickles. They are read only if their checksum is the published one, by an unpickler that knows numpy
arrays and nothing else that could be called.
"""

from __future__ import annotations

import dataclasses
import pickle
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from unissl.data.dataset import DataConfig, Dataset
from unissl.data.images.resize import scale_arrays
from unissl.data.sources.checksums import require_checksum
from unissl.data.sources.locate import data_folders, not_found
from unissl.data.sources.parquet import find_parquet, load_parquet
from unissl.data.store.decode_to_cache import store_arrays, stored_table
from unissl.errors import UserError, shortened
from unissl.types import ImageTable
from unissl.utils.cache import cached

MAX_BATCH_BYTES = 256 << 20
"""Size of one member of the archive; the largest, of CIFAR-100, has 156 MB."""
ALLOWED_NAMES = frozenset(
    {"numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype"}
)


@dataclass(frozen=True)
class Release:
    """The names in one official archive, and the constants that normalise its images."""

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
    """The data set from its archive or unpacked folder, or from parquet files at the same path."""
    path = find_cifar(config.root, release)
    if path is None:
        raise not_found(release.name, config.root, release.where)
    if not _is_official(path, release):
        dataset = load_parquet(config.model_copy(update={"root": str(path)}))
        if dataset.train.num_classes != release.classes:
            raise UserError(
                f"{path} has {dataset.train.num_classes} classes, so it is not {release.name}; check --root."
            )
        return dataclasses.replace(dataset, name=release.name, mean=release.mean, std=release.std)
    train = _load_part(path, release, release.train, config.image_size)
    test = _load_part(path, release, release.test, config.image_size)
    return Dataset(release.name, train, test, release.mean, release.std, flip=True)


def find_cifar(root: str | None, release: Release) -> Path | None:
    """The archive, the folder of batches, or a folder with parquet files: in ``root`` or in $UNISSL_DATA."""
    for base in data_folders(root, release.name):
        for path in (base, base / release.folder, base / release.archive):
            if _is_official(path, release):
                return path
        if (root or base.name == release.name) and find_parquet(base):
            return base
    return None


def _is_official(path: Path, release: Release) -> bool:
    return (path.is_file() and path.suffix != ".parquet") or (path / release.train[0]).is_file()


def _load_part(path: Path, release: Release, batch_names: tuple[str, ...], size: int | None) -> ImageTable:
    names = (*batch_names, release.meta)
    sources = [path] if path.is_file() else [path / name for name in names]

    def build(target: Path) -> dict[str, Any]:
        contents = _read_archive(path, release, names) if path.is_file() else _read_folder(path, release, names)
        batches = [contents[name] for name in batch_names]
        # Rows of 3072 bytes: all red values, all green, all blue.
        images = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = np.concatenate([np.array(batch[release.label_key], dtype=np.int64) for batch in batches])
        class_names = [name.decode() for name in contents[release.meta][release.names_key]]
        return {"class_names": class_names, **store_arrays(target, scale_arrays(images, size), labels)}

    entry = cached("cifar", sources, {"release": release.name, "batches": batch_names, "size": size}, build)
    return stored_table(entry, tuple(entry.meta["class_names"]))


def _read_folder(folder: Path, release: Release, names: tuple[str, ...]) -> dict[str, Any]:
    contents = {}
    for name in names:
        require_checksum(folder / name, f"{release.folder}/{name}")
        with (folder / name).open("rb") as file:
            contents[name] = unpickle_batch(file, str(folder / name))
    return contents


def _read_archive(path: Path, release: Release, names: tuple[str, ...]) -> dict[str, Any]:
    """The named members, read in the order of the archive; nothing is unpacked to disk."""
    require_checksum(path, release.archive)
    contents = {}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            name = member.name.removeprefix(f"{release.folder}/")
            if name in names and member.size <= MAX_BATCH_BYTES and (file := archive.extractfile(member)):
                contents[name] = unpickle_batch(file, f"{name} in {path}")
    return contents


class _BatchUnpickler(pickle.Unpickler):
    """Unpickles builtin values and numpy arrays; every other name is an error."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in ALLOWED_NAMES:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


def unpickle_batch(file: IO[bytes], name: str) -> Any:
    """The dictionary of an official batch, whose checksum has been verified; Python 2 strings are bytes."""
    try:
        return _BatchUnpickler(file, encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{name} is not an official batch ({shortened(str(error))}); delete it and download it again."
        ) from None
