"""A folder of images, some of them labelled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unissl.data.dataset import DataConfig, Dataset, choose_holdout
from unissl.data.folder.index import FolderIndex, index_folder, index_test_folder
from unissl.data.images.issues import describe_issues, merge_issues
from unissl.data.store.decode_to_cache import store_encoded, unreadable_message
from unissl.errors import UserError
from unissl.types import UNLABELLED, ImageTable
from unissl.utils.cache import Entry, cached
from unissl.utils.file_names import printable, remarks_on_names, writable

DEFAULT_SIZE = 32


def load_folder(config: DataConfig) -> Dataset:
    """The images below ``root`` (see :mod:`unissl.data.folder.index`); unreadable ones in the pool are skipped and listed."""
    if config.root is None:
        raise UserError("Name the folder that holds the images with --root.")
    if config.test is not None and config.test_holdout is not None:
        raise UserError("There is a test folder, so nothing can be held out; leave data.test_holdout out.")
    root = Path(config.root)
    test_root = Path(config.test) if config.test is not None else None
    size = config.image_size or DEFAULT_SIZE
    layout = index_folder(root, config.labels, without=test_root)
    test_layout = index_test_folder(test_root, layout.class_names) if test_root is not None else None
    if config.test_holdout is not None:
        test_root, held = root, choose_holdout(layout.labels, config.test_holdout)
        rest = np.setdiff1d(np.arange(len(layout.files)), held)
        test_layout = layout.subset(held)
        layout = replace(layout.subset(rest), skipped=layout.skipped, remarks=layout.remarks)
        _require_every_class(layout)
    entry = _entry(root, layout, size, None)
    train = _table(root, layout, entry)
    test = None
    if test_root is not None and test_layout is not None:
        test = folder_table(test_root, test_layout, size, train.images.shape[3])
    return Dataset("folder", train, test, tuple(entry.meta["mean"]), tuple(entry.meta["std"]), flip=True)


def folder_table(root: Path, layout: FolderIndex, size: int, channels: int) -> ImageTable:
    return _table(root, layout, _entry(root, layout, size, channels))


def _entry(root: Path, layout: FolderIndex, size: int, channels: int | None) -> Entry:
    """The decoded images. The labels are no part of it, so labelling more images does not decode the pool again."""
    paths = [os.path.join(root, file) for file in layout.files]

    def build(target: Path) -> dict[str, Any]:
        # Labelled images first: the one that stops everything should do so before an hour of decoding.
        order = np.argsort(layout.labels == UNLABELLED, kind="stable")
        return store_encoded(
            target,
            ((int(row), paths[row]) for row in order),
            len(paths),
            size,
            channels,
            lambda row: bool(layout.labels[row] != UNLABELLED),
            lambda row: printable(paths[row]),
        )

    return cached("folder", paths, {"size": size, "channels": channels}, build)


def _table(root: Path, layout: FolderIndex, entry: Entry) -> ImageTable:
    for row, reason in entry.meta["skipped"]:
        if layout.labels[row] != UNLABELLED:  # unlabelled when the cache was made, labelled since
            raise UserError(unreadable_message(printable(os.path.join(root, layout.files[row])), reason))
    skipped = [*layout.skipped, *((layout.files[row], reason) for row, reason in entry.meta["skipped"])]
    listed = tuple(sorted((writable(name), reason) for name, reason in skipped))
    kept = layout.subset(np.asarray(entry.arrays["rows"]))
    files = tuple(writable(file) for file in kept.files)

    def originals() -> Iterator[str]:
        return (os.path.join(root, file) for file in kept.files)

    used = frozenset(kept.files)
    told = {text: tuple(writable(file) for file in named if file in used) for text, named in layout.remarks.items()}
    about_labels = {text: named for text, named in told.items() if named}
    about_images = describe_issues(np.asarray(entry.arrays["oddities"]), lambda row: files[row])
    return ImageTable(
        entry.arrays["images"],
        kept.labels,
        kept.class_names,
        files,
        listed,
        entry.hashes["images"],
        originals,
        merge_issues([about_labels, about_images, remarks_on_names(kept.files)]),
    )


def _require_every_class(layout: FolderIndex) -> None:
    counts = np.bincount(layout.labels[layout.labels != UNLABELLED], minlength=len(layout.class_names))
    for name, count in zip(layout.class_names, counts, strict=True):
        if count == 0:
            raise UserError(f"data.test_holdout leaves no labelled image of class {name!r}; hold out fewer images.")
