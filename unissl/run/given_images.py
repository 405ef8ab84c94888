"""Images from a Python caller, stored so that the run can be resumed: paths as a label file, arrays as .npz."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unissl.config import ConfigTree
from unissl.data.dataset import require_distinct_names, sort_class_names
from unissl.errors import UserError, shortened
from unissl.run_folder import RunFolder
from unissl.types import MISSING_WORDS, UNLABELLED, is_unlabelled
from unissl.utils.atomic import explain_disk_errors, write_atomically, write_text
from unissl.utils.csv_cells import to_cell

FOLDER = ".inputs"
"""Hidden, so that the run folder still counts as empty."""
FILE_COLUMNS, LABEL_COLUMNS = ("file", "path", "image", "filename"), ("label", "class", "target")


def store_images(images: Any, labels: Any, folder: RunFolder, groups: Any = None) -> ConfigTree:
    """Store a list of paths, a pandas DataFrame or an array in the run folder; the data settings that read them.

    ``labels`` has one label per image; a missing value (None, NaN, pandas' NA and NaT) and the number -1 are an
    unlabelled one. ``groups``, if they are given, has one group per image, None for an image by itself.
    """
    folder.check_unused()
    if hasattr(images, "columns") and hasattr(images, "itertuples"):
        images, labels, column = _from_dataframe(images)
        groups = column if groups is None else groups
    if not hasattr(images, "__len__"):
        images = list(images)
    if labels is None:
        raise UserError("Give one label per image, None for an unlabelled one: labels=[...].")
    if isinstance(labels, str | Path):
        raise UserError("Images from Python need their labels as a list; a label file goes with a folder.")
    names = [_label_name(label, "label") for label in labels]
    if not len(images):
        raise UserError("There are no images; give at least two classes of them.")
    if len(names) != len(images):
        raise UserError(f"There are {len(images)} images and {len(names)} labels; give one label per image.")
    if isinstance(groups, str) or (groups is not None and not hasattr(groups, "__len__")):
        raise UserError("Images from Python need their groups as a list, one per image.")
    if groups is not None and len(groups) != len(images):
        raise UserError(f"There are {len(images)} images and {len(groups)} groups; give one group per image, or None.")
    target = folder.path / FOLDER
    with explain_disk_errors(target):
        target.mkdir(parents=True, exist_ok=True)
    if isinstance(images, np.ndarray) or hasattr(images, "__array__"):
        if groups is not None:
            raise UserError("Groups need image files; give a list of paths in place of an array, or leave them out.")
        return _store_arrays(np.asarray(images), names, target / "images.npz")
    group_names = None if groups is None else [_label_name(group, "group") for group in groups]
    return _store_paths(list(images), names, group_names, target / "labels.csv")


def _store_paths(paths: Sequence[Any], names: Sequence[str], groups: Sequence[str] | None, target: Path) -> ConfigTree:
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise UserError(f"An image is given as {type(path).__name__}; give paths, a DataFrame, or one array.")
    absolute = [os.path.abspath(os.fspath(path)) for path in paths]
    missing = next((path for path in absolute if not os.path.isfile(path)), None)
    if missing is not None:
        raise UserError(f"There is no image {missing}; check the path.")
    root = os.path.commonpath([os.path.dirname(path) for path in absolute])
    text = io.StringIO()
    writer = csv.writer(text)
    columns = {"file": [os.path.relpath(path, root) for path in absolute], "label": names}
    columns |= {} if groups is None else {"group": groups}
    writer.writerow(columns)
    writer.writerows(zip(*(map(to_cell, column) for column in columns.values()), strict=True))
    write_text(target, text.getvalue())
    return {"name": "folder", "root": root, "labels": str(target), "listed_only": True}


def _store_arrays(images: np.ndarray[Any, Any], names: Sequence[str], target: Path) -> ConfigTree:
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise UserError(
            f"Images are an array of {images.dtype} with shape {images.shape}; give uint8 values in (n, H, W, C) or "
            "(n, H, W). For feature vectors use unissl.SAGEClassifier."
        )

    class_names = sort_class_names({name for name in names if name})
    require_distinct_names(class_names, "the list of labels")
    number = {name: c for c, name in enumerate(class_names)} | {"": UNLABELLED}
    labels, text = np.array([number[name] for name in names], dtype=np.int64), json.dumps(class_names)

    def write(path: Path) -> None:
        with open(path, "wb") as handle:
            np.savez(handle, images=images, labels=labels, class_names=np.array(list(text.encode()), np.uint8))

    write_atomically(target, write)
    return {"name": "arrays", "root": str(target)}


def _from_dataframe(frame: Any) -> tuple[list[Any], list[Any], list[Any] | None]:
    """Files, labels and, if there is such a column, groups."""
    columns = {str(name).lower(): name for name in frame.columns}
    file = next((columns[name] for name in FILE_COLUMNS if name in columns), None)
    label = next((columns[name] for name in LABEL_COLUMNS if name in columns), None)
    if file is None or label is None:
        raise UserError("The table needs a column file and a column label; rename two of its columns.")
    return list(frame[file]), list(frame[label]), list(frame[columns["group"]]) if "group" in columns else None


def _label_name(label: Any, what: str) -> str:
    """The name of a class or group, empty for a missing one."""
    if not isinstance(label, np.generic) and getattr(label, "ndim", None) == 0:
        label = label.item()  # of a torch tensor
    if is_unlabelled(label):
        return ""
    if isinstance(label, bytes) or (hasattr(label, "__len__") and not isinstance(label, str)):
        raise UserError(f"A {what} is given as {type(label).__name__}; give text or a number, or None.")
    if isinstance(label, str) and label.strip() in MISSING_WORDS:
        raise UserError(
            f"A {what} is the text {label!r}, which programs write for a missing value; give None for an image without "
            f"a {what}, otherwise rename the {'class' if what == 'label' else what}."
        )
    name = str(label).strip()  # as in a label file
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise UserError(f"The {what} {shortened(name)!a} is not Unicode, and no file could hold it; rename it.")
    return name
