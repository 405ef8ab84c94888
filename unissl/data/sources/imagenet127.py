"""ImageNet-127: ImageNet-1k with its classes put into 127 groups of very different size (the largest has some 286 times
the images of the smallest; that ratio is a property of the data).

The mapping from classes to groups may not be published here: the user supplies it as a class map, or the class folders
are the groups already. A class map has on each line a class (a wnid such as n01440764, or the number that arrays use
for it) and the name of its group, separated by a comma, a tab or spaces. Empty lines and lines after # are skipped.

Images come from class folders, train/<class>/*.JPEG and val/<class>/*.JPEG, or from the arrays of the downsampled
ImageNet (Chrabaszcz et al., 2017, https://arxiv.org/abs/1707.08819): train_data_batch_1.npz and on, and val_data.npz. A
batch has ``data``, uint8 (n, 3 * side * side) with all red values, all green, all blue of each image, and ``labels``,
which count from 1. The optional map_clsloc.txt of the same authors has on each line a wnid, its number, and a name.

The cache stores images at 32 x 32 pixels with their original classes, so another grouping decodes nothing.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from unissl.data.dataset import DataConfig, Dataset, require_two_classes, sort_class_names
from unissl.data.images.decode import IMAGE_SUFFIXES
from unissl.data.images.resize import CenterCrop
from unissl.data.sources.checksums import report_partial
from unissl.data.sources.locate import DatasetLocation
from unissl.data.sources.npz import DamagedArray, read_array
from unissl.data.store.decode_to_cache import store_blocks, store_encoded, stored_table
from unissl.errors import UserError, did_you_mean, shortened
from unissl.types import ImageTable
from unissl.utils.bounded_io import read_text
from unissl.utils.cache import Entry, cached, save_array

FOLDERS = DatasetLocation(
    name="imagenet127",
    needed=("train", "val"),
    archives=("Imagenet32_train_npz.zip",),
    inner="imagenet127",
    where="Put class folders train/ and val/ of ImageNet, or train_data_batch_1.npz and on and val_data.npz of its"
    " 32 x 32 version, all of https://image-net.org/download-images, into $UNISSL_DATA/imagenet127 or a folder"
    " named with --root; data.class_map names a file with the group of each wnid.",
)
NPZ = replace(FOLDERS, needed=("train_data_batch_1.npz", "val_data.npz"))
GROUPS, SIDE = 127, 32
IMAGES = {"train": 1_281_167, "val": 50_000}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FIT = CenterCrop(Image.Resampling.BOX, squeeze=True)
"""As in the downsampled ImageNet, nearly."""
BETWEEN = re.compile(r"\s*[,;\t]\s*|\s+")
EXAMPLE = "a line is a class and its group, for example: n01440764 fish"


def find_imagenet127(root: str | None) -> Path | None:
    return FOLDERS.find(root) or NPZ.find(root)


def load_imagenet127(config: DataConfig) -> Dataset:
    """By default a tenth of each class is labelled and the rest is the pool."""
    folder = find_imagenet127(config.root)
    if folder is None:
        if config.root is not None and (Path(config.root) / "train_data_batch_1").is_file():
            raise UserError(
                f"{config.root} holds the downsampled ImageNet as pickles, which are not read because they have no"
                " published checksum; download Imagenet32_train_npz.zip and Imagenet32_val_npz.zip instead."
            )
        nearest = max((FOLDERS, NPZ), key=lambda location: location.count_present(config.root))
        raise nearest.missing(config.root)
    size = config.image_size or SIDE
    parts = []
    for part, published in IMAGES.items():
        if (folder / "train").is_dir():
            parts.append(_load_folder(folder / part, published, size))
        else:
            parts.append(_load_arrays(folder, part, published, size))
    class_names, (train, test) = _group_classes(folder, config.class_map, parts)
    report_partial("imagenet127", "groups", len(class_names), GROUPS)
    tenth = {"pool_distribution": "natural", "labelled_fraction": 0.1}
    return Dataset("imagenet127", train, test, MEAN, STD, flip=True, split=tenth)


def _load_folder(folder: Path, published: int, size: int) -> Entry:
    """Images and labels of class folders, whose names are in ``meta["names"]``.

    The cache key has the modification times of the folders, which change when an image is added or removed: reading
    those of a million files would take too long at every start.
    """
    classes = [item.name for item in _entries(folder) if item.is_dir() and not item.name.startswith(".")]
    if not classes:
        raise UserError(f"{folder} holds no class folders; put the images into {folder}/<class>.")

    def build(target: Path) -> dict[str, Any]:
        paths, labels = [], []
        for number, name in enumerate(classes):
            images = [item.path for item in _entries(folder / name) if _is_image(item)]
            if not images:
                raise UserError(f"{folder / name} holds no images; put them directly into it, or remove the folder.")
            paths += images
            labels += [number] * len(images)
        report_partial("imagenet127", f"images in {folder.name}", len(paths), published)
        meta = store_encoded(target, enumerate(paths), len(paths), size, 3, lambda row: None, FIT)
        save_array(target / "labels.npy", np.array(labels, dtype=np.int64)[np.load(target / "rows.npy")])
        skipped = [(os.path.relpath(paths[row], folder.parent), reason) for row, reason in meta["skipped"]]
        return {"names": classes, "skipped": skipped}

    return cached("imagenet-folders", [folder, *(folder / name for name in classes)], {"size": size}, build)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder, sorted by name."""
    try:
        return sorted(os.scandir(folder), key=lambda item: item.name)
    except OSError as error:
        raise UserError(f"{folder} cannot be opened as a folder ({error.strerror}); check --root.") from None


def _is_image(item: os.DirEntry[str]) -> bool:
    suffix = os.path.splitext(item.name)[1].lower()
    return suffix in IMAGE_SUFFIXES and not item.name.startswith(".") and item.is_file()


def _load_arrays(folder: Path, part: str, published: int, size: int) -> Entry:
    """Images and labels of "train" or "val"; ``meta["names"]`` are the published class numbers, as text."""
    batches = _batches(folder, part)

    def build(target: Path) -> dict[str, Any]:
        batch_labels = [_read_labels(path) for path in batches]
        numbers = np.concatenate(batch_labels)
        report_partial("imagenet127", f"images in {part}", len(numbers), published)
        classes, labels = np.unique(numbers, return_inverse=True)
        blocks = (_read_images(path, len(some)) for path, some in zip(batches, batch_labels, strict=True))
        store_blocks(target, blocks, size, labels.astype(np.int64))
        return {"names": [str(number) for number in classes]}

    return cached("imagenet-arrays", batches, {"size": size}, build)


def _batches(folder: Path, part: str) -> list[Path]:
    if part == "val":
        return [folder / "val_data.npz"]
    pattern = re.compile(r"train_data_batch_(\d+)\.npz")
    numbers = sorted(int(match[1]) for path in folder.iterdir() if (match := pattern.fullmatch(path.name)))
    missing = sorted(set(range(1, max(numbers, default=1) + 1)) - set(numbers))
    if missing:
        raise UserError(f"{folder} lacks train_data_batch_{missing[0]}.npz; download it again.")
    return [folder / f"train_data_batch_{number}.npz" for number in numbers]


def _read_labels(path: Path) -> npt.NDArray[np.int64]:
    labels = _read_array(path, "labels")
    if (
        labels.ndim != 1
        or labels.dtype.kind not in "iu"
        or len(labels) == 0
        or not 0 <= labels.min() <= labels.max() < 2**31
    ):
        raise UserError(f"{path} has labels that are not numbers from 1; download it again.")
    return labels.astype(np.int64)


def _read_images(path: Path, count: int) -> npt.NDArray[np.uint8]:
    """(count, side, side, 3)"""
    data = _read_array(path, "data")
    side = math.isqrt(data.shape[1] // 3) if data.ndim == 2 else 0
    if data.dtype != np.uint8 or side == 0 or 3 * side * side != data.shape[1]:
        raise UserError(
            f"{path} holds {data.dtype} of shape {data.shape}, not square colour images; download it again."
        )
    if len(data) != count:
        raise UserError(f"{path} has {len(data)} images and {count} labels; download it again.")
    return data.reshape(-1, 3, side, side).transpose(0, 2, 3, 1)


def _read_array(path: Path, key: str) -> npt.NDArray[Any]:
    try:
        return read_array(path, key)
    except DamagedArray as error:
        raise UserError(f"{path} cannot be read ({shortened(str(error))}); download it again.") from None


def _group_classes(
    folder: Path, group_file: str | None, parts: list[Entry]
) -> tuple[tuple[str, ...], list[ImageTable]]:
    """The class names after grouping, and each part labelled with them."""
    if group_file is None:
        group = {name: name for entry in parts for name in entry.meta["names"]}
    else:
        path, wnids = Path(group_file), _read_wnids(folder)
        groups = read_groups(path)
        group = {name: _group_of(name, groups, wnids, path) for entry in parts for name in entry.meta["names"]}
    class_names = sort_class_names(group[name] for name in parts[0].meta["names"])
    if group_file is None and len(class_names) > GROUPS:
        raise UserError(
            f"{folder} has {len(class_names)} classes, so they are not in {GROUPS} groups yet; give the file that maps"
            " classes to groups with --set data.class_map=FILE."
        )
    require_two_classes(class_names, group_file or str(folder))
    for name in parts[1].meta["names"]:
        if group[name] not in class_names:
            known = did_you_mean(group[name], list(class_names))
            raise UserError(f"The class {group[name]!r} of val in {folder} is not in train.{known}")
    tables = []
    for entry in parts:
        number = np.array([class_names.index(group[name]) for name in entry.meta["names"]], dtype=np.int64)
        skipped = tuple((name, reason) for name, reason in entry.meta.get("skipped", ()))
        table = stored_table(entry, class_names)
        tables.append(replace(table, labels=number[table.labels], skipped=skipped))
    return class_names, tables


def read_groups(path: Path) -> dict[str, str]:
    """Class -> group."""
    try:
        text = read_text(path).removeprefix("\ufeff")
    except OSError as error:
        raise UserError(f"The group file {path} cannot be read ({error.strerror}); check the path.") from None
    except ValueError:
        raise UserError(f"The group file {path} is no UTF-8 text; {EXAMPLE}.") from None
    groups: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, *rest = BETWEEN.split(line.strip(), maxsplit=1)
        if not name or not rest or not rest[0]:
            raise UserError(f"Line {number} of the group file {path} has one word ({shortened(name)!r}); {EXAMPLE}.")
        if groups.setdefault(name, rest[0]) != rest[0]:
            raise UserError(
                f"Line {number} of the group file {path} puts {shortened(name)} into {shortened(rest[0])!r}, and an"
                f" earlier one into {shortened(groups[name])!r}; correct one of them."
            )
    if not groups:
        raise UserError(f"The group file {path} is empty; {EXAMPLE}.")
    return groups


def _group_of(name: str, groups: Mapping[str, str], wnids: Mapping[str, str], path: Path) -> str:
    """The group of a class, by its name or, for the number in an array, by its wnid."""
    group = groups.get(name) or groups.get(wnids.get(name, ""))
    if group is None:
        hint = ""
        if name.isdecimal() and not wnids:
            hint = ", or put map_clsloc.txt, which has the wnid of each number, next to the arrays"
        raise UserError(f"The group file {path} has no group for the class {shortened(name)}; add a line for it{hint}.")
    return group


def _read_wnids(folder: Path) -> dict[str, str]:
    """Class number -> wnid from map_clsloc.txt; empty without that file."""
    path = folder / "map_clsloc.txt"
    if not path.is_file():
        return {}
    wnids = {}
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({shortened(str(error))}); download it again.") from None
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 2 or not re.fullmatch(r"n\d{8}", fields[0]) or not fields[1].isdecimal():
            raise UserError(
                f"{path} has the line {shortened(line)!r}, which is not a wnid, its number and a name;"
                " download it again."
            )
        wnids[fields[1]] = fields[0]
    return wnids
