"""Load a folder of images, some of them labelled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unissl.data.dataset import DataConfig, Dataset, choose_holdout
from unissl.data.folder.index import FolderIndex, index_test_folder, scan_folder
from unissl.data.groups import number_groups
from unissl.data.images.issues import describe_issues, merge_issues
from unissl.data.sources.parquet import parquet_test_table
from unissl.data.store.decode_to_cache import store_encoded, unreadable_message
from unissl.errors import UserError
from unissl.types import UNLABELLED, ImageTable
from unissl.utils.cache import Entry, cached
from unissl.utils.file_names import name_issues, printable, writable

DEFAULT_IMAGE_SIZE = 32
GROUP_HELD_OUT = "unlabelled, and its group is held out for testing"


def load_folder(config: DataConfig, index: FolderIndex | None = None) -> Dataset:
    """The images below ``root`` (see :mod:`unissl.data.folder.index`); unreadable pool images are skipped and listed.

    ``index`` is an earlier result of :func:`scan_folder` for the same ``config``; without it the folder is walked now.
    """
    if config.test is not None and config.test_holdout is not None:
        raise UserError(
            "There is a test folder, so no images can be held out; leave out --holdout (data.test_holdout)."
        )
    train = index or scan_folder(config)
    if train is None or train.root != Path(config.root or ""):
        raise ValueError("the index belongs to another folder")
    size = config.image_size or DEFAULT_IMAGE_SIZE
    test = train.test
    if config.test_holdout is not None:
        groups = None if train.groups is None else number_groups(train.groups)
        rows = choose_holdout(train.labels, config.test_holdout, groups)
        test = train.subset(rows)
        held_out = rows if groups is None else np.flatnonzero(np.isin(groups, groups[rows]))
        unused = tuple((train.files[row], GROUP_HELD_OUT) for row in np.setdiff1d(held_out, rows))
        rest = train.subset(np.setdiff1d(np.arange(len(train.files)), held_out))
        train = replace(rest, skipped=train.skipped + unused, issues=train.issues)
    entry = _decode(train, size, None)
    table = _make_table(train, entry)
    test_table = folder_table(test, size, table.images.shape[3]) if test is not None else None
    return Dataset("folder", table, test_table, tuple(entry.meta["mean"]), tuple(entry.meta["std"]), flip=True)


def load_test(path: Path, class_names: tuple[str, ...], size: int, channels: int) -> ImageTable:
    """Labelled test images for a trained model with these classes: a parquet file, or a folder with one subfolder per
    class."""
    if path.suffix == ".parquet":
        return parquet_test_table(path, class_names, size, channels)
    return folder_table(index_test_folder(path, class_names), size, channels)


def folder_table(index: FolderIndex, size: int, channels: int) -> ImageTable:
    return _make_table(index, _decode(index, size, channels))


def _decode(index: FolderIndex, size: int, channels: int | None) -> Entry:
    """The cache entry of the images. Its key has no labels, so new labels do not decode the pool again."""
    paths = index.paths

    def build(target: Path) -> dict[str, Any]:
        # Labelled images first: an unreadable one is an error, and should be one before an hour of decoding.
        order = np.argsort(index.labels == UNLABELLED, kind="stable")
        items = ((int(row), paths[row]) for row in order)
        return store_encoded(target, items, len(paths), size, channels, required_name)

    def required_name(row: int) -> str | None:
        return None if index.labels[row] == UNLABELLED else printable(paths[row])

    return cached("folder", paths, {"size": size, "channels": channels}, build, index.stats)


def _make_table(index: FolderIndex, entry: Entry) -> ImageTable:
    for row, reason in entry.meta["skipped"]:
        if index.labels[row] != UNLABELLED:  # unlabelled when the cache was made, labelled since
            raise UserError(unreadable_message(printable(index.paths[row]), reason))
    skipped = [*index.skipped, *((index.files[row], reason) for row, reason in entry.meta["skipped"])]
    used = index.subset(np.asarray(entry.arrays["rows"]))
    files = tuple(writable(file) for file in used.files)

    names = frozenset(used.files)
    label_issues = {
        text: listed
        for text, some in index.issues.items()
        if (listed := tuple(writable(f) for f in some if f in names))
    }
    image_issues = describe_issues(np.asarray(entry.arrays["issues"]), lambda row: files[row])
    return ImageTable(
        entry.arrays["images"],
        used.labels,
        used.class_names,
        files,
        tuple(sorted((writable(name), reason) for name, reason in skipped)),
        entry.hashes["images"],
        lambda: iter(used.paths),
        merge_issues([label_issues, image_issues, name_issues(used.files)]),
        None if used.groups is None else number_groups(used.groups),
    )
