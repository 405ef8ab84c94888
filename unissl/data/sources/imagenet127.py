"""ImageNet-127: ImageNet-1k with its classes put into 127 groups of very different size (the largest has some 286 times
the images of the smallest; that ratio is a property of the data).

The mapping from classes to groups may not be published here: the user supplies it as a file
(:mod:`unissl.data.sources.class_groups`), or the class folders are the groups already. Images come from class folders,
train/<class>/*.JPEG and val/<class>/*.JPEG, or from the arrays of the downsampled ImageNet
(:mod:`unissl.data.sources.imagenet_arrays`). The cache stores them at 32 x 32 pixels with their original classes, so
another grouping decodes nothing.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unissl.data.dataset import DataConfig, Dataset, require_two_classes, sort_class_names
from unissl.data.images.decode import IMAGE_SUFFIXES
from unissl.data.images.resize import CenterCrop
from unissl.data.sources.checksums import report_partial
from unissl.data.sources.class_groups import group_of, read_groups
from unissl.data.sources.imagenet_arrays import load_arrays, read_wnids
from unissl.data.sources.locate import DatasetLocation
from unissl.data.store.decode_to_cache import store_encoded
from unissl.errors import UserError, did_you_mean
from unissl.types import ImageTable
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
        raise UserError(nearest.missing_message(config.root))
    size = config.image_size or SIDE
    parts = []
    for part, published in IMAGES.items():
        if (folder / "train").is_dir():
            parts.append(_load_folder(folder / part, published, size))
        else:
            parts.append(load_arrays(folder, part, published, size))
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
        items = enumerate(paths)
        meta = store_encoded(target, items, len(paths), size, 3, lambda row: None, FIT)
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


def _group_classes(
    folder: Path, group_file: str | None, parts: list[Entry]
) -> tuple[tuple[str, ...], list[ImageTable]]:
    """The class names after grouping, and each part labelled with them."""
    if group_file is None:
        group = {name: name for entry in parts for name in entry.meta["names"]}
    else:
        path, wnids = Path(group_file), read_wnids(folder)
        groups = read_groups(path)
        group = {name: group_of(name, groups, wnids, path) for entry in parts for name in entry.meta["names"]}
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
        labels = number[np.asarray(entry.arrays["labels"])]
        content = entry.hashes["images"]
        tables.append(ImageTable(entry.arrays["images"], labels, class_names, skipped=skipped, content=content))
    return class_names, tables
