"""Which images in a folder have which label: found from folder names or a CSV file, without opening any image.

Three layouts are understood (unlabeled and labeled may be spelt with one l or two, in any case):

    root/<class>/**             and optionally  root/unlabelled/**
    root/labelled/<class>/**    and optionally  root/unlabelled/**
    root/**                     with a CSV file that names some of the images and their labels

Images that lie directly in the root are unlabelled, and so are those with an empty label or -1 in the CSV. The order is
that of the sorted relative paths.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from unissl.data.dataset import require_two_classes, sort_class_names
from unissl.errors import UserError, did_you_mean
from unissl.types import UNKNOWN

IMAGE_SUFFIXES = {
    ".apng", ".avif", ".bmp", ".dib", ".gif", ".heic", ".heif", ".ico", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg",
    ".jpx", ".pbm", ".pcx", ".pgm", ".png", ".pnm", ".ppm", ".psd", ".qoi", ".tga", ".tif", ".tiff", ".webp",
}  # fmt: skip
LABELLED = {"labeled", "labelled"}
UNLABELLED = {"unlabeled", "unlabelled"}
OTHER_PARTS = {"test", "val", "valid", "validation"}
FILE_COLUMNS = {"file", "file_name", "filename", "filepath", "file_path", "path", "image", "image_path", "img"}
LABEL_COLUMNS = {"label", "labels", "class", "class_name", "category"}


@dataclass(frozen=True)
class Layout:
    """Paths relative to the root, sorted, with a label each."""

    files: tuple[str, ...]
    labels: npt.NDArray[np.int64]
    class_names: tuple[str, ...]

    def subset(self, rows: npt.NDArray[np.int64]) -> Layout:
        return Layout(tuple(self.files[row] for row in rows), self.labels[rows], self.class_names)


def read_layout(root: Path, labels: str | None, without: Path | None) -> Layout:
    """Everything to learn from under ``root``; ``without`` is a test folder that may lie inside it."""
    _require_folder(root)
    named = _labels_from_csv(root, labels) if labels is not None else _labels_from_folders(root, without)
    class_names = sort_class_names(name for name in named.values() if name is not None)
    if not named and labels is None:
        raise UserError(f"The folder {root} holds no images; put them into one subfolder per class.")
    require_two_classes(class_names, labels or str(root))
    if labels is not None:
        named = {**dict.fromkeys(list_images(root, without)), **named}
    return _layout(named, class_names)


def read_test_layout(root: Path, class_names: tuple[str, ...]) -> Layout:
    """A folder with one subfolder per class, whose names must be among the classes that are learnt."""
    _require_folder(root)
    named: dict[str, str | None] = {}
    for name in _subfolders(root):
        if name not in class_names:
            known = did_you_mean(name, list(class_names))
            raise UserError(f"The test folder {root} has a class {name!r} that the training images have not.{known}")
        named.update((f"{name}/{file}", name) for file in list_images(root / name))
    if not named:
        raise UserError(f"The test folder {root} holds no images; put them into one subfolder per class.")
    return _layout(named, class_names)


def list_images(folder: Path, without: Path | None = None) -> list[str]:
    """Relative paths of all image files below ``folder``, sorted; hidden ones and linked folders are passed over."""
    excluded = os.path.realpath(without) if without is not None else None
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [
            name for name in folders if name[0] != "." and os.path.realpath(os.path.join(place, name)) != excluded
        ]
        for name in files:
            path = os.path.join(place, name)
            is_device = os.path.exists(path) and not os.path.isfile(path)
            if name[0] != "." and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not is_device:
                found.append(Path(os.path.relpath(path, folder)).as_posix())
    return sorted(found)


def _layout(named: Mapping[str, str | None], class_names: tuple[str, ...]) -> Layout:
    files = sorted(named)
    number = {name: c for c, name in enumerate(class_names)}
    labels = [UNKNOWN if (name := named[file]) is None else number[name] for file in files]
    return Layout(tuple(files), np.array(labels, dtype=np.int64), class_names)


def _labels_from_folders(root: Path, without: Path | None) -> dict[str, str | None]:
    """Relative path to class name, None for the pool."""
    folders = [name for name in _subfolders(root) if without is None or not _same(root / name, without)]
    pool = [name for name in folders if name.lower() in UNLABELLED]
    labelled = [name for name in folders if name.lower() in LABELLED]
    parts = set(_subfolders(root)) - UNLABELLED
    if {"train"} < parts <= {"train"} | OTHER_PARTS:
        raise UserError(
            f"{root} is cut into train and other parts; give --root {root / 'train'} and --test for the other."
        )
    homes = {name: root / name for name in folders if name not in pool}
    if labelled:
        homes = {f"{top}/{name}": root / top / name for top in labelled for name in _subfolders(root / top)}
    named: dict[str, str | None] = {path.name: None for path in root.iterdir() if _is_loose_image(path)}
    for name in pool:
        named.update((f"{name}/{file}", None) for file in list_images(root / name, without))
    for prefix, home in homes.items():
        files = list_images(home, without)
        if not files:
            raise UserError(f"The class folder {home} holds no image; add at least one or remove the folder.")
        named.update((f"{prefix}/{file}", home.name) for file in files)
    return named


def _labels_from_csv(root: Path, labels: str) -> dict[str, str | None]:
    path = Path(labels) if Path(labels).is_file() else root / labels
    if not path.is_file():
        raise UserError(f"There is no labels file {labels}; check the path given with --labels.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text; save it as CSV with UTF-8 encoding.") from None
    lines = text.splitlines()
    delimiter = max(",;\t", key=lines[0].count) if lines else ","
    rows = [row for row in enumerate(csv.reader(lines, delimiter=delimiter), start=1) if any(row[1])]
    named: dict[str, str | None] = {}
    file_column, label_column, rows = _columns(path, rows)
    for number, row in rows:
        if len(row) <= max(file_column, label_column):
            raise UserError(f"Line {number} of {path} has too few columns; give a file and a label.")
        file, label = _file_below(root, row[file_column].strip(), path, number), row[label_column].strip()
        known = None if label in ("", "-1") else label
        if named.setdefault(file, known) != known:
            raise UserError(f"{path} gives {file} two labels, {named[file]!r} and {label!r}; keep one of them.")
    return named


def _columns(path: Path, rows: list[tuple[int, list[str]]]) -> tuple[int, int, list[tuple[int, list[str]]]]:
    """Position of the file and of the label column, and the rows without a header."""
    if not rows:
        raise UserError(f"{path} is empty; give a file and a label in each line.")
    first = [cell.strip().lower() for cell in rows[0][1]]
    file = next((i for i, cell in enumerate(first) if cell in FILE_COLUMNS), None)
    label = next((i for i, cell in enumerate(first) if cell in LABEL_COLUMNS), None)
    if file is not None and label is not None:
        return file, label, rows[1:]
    if len(first) == 2:
        return 0, 1, rows
    raise UserError(f"{path} needs a header line with the columns file and label (found: {', '.join(first)}).")


def _file_below(root: Path, name: str, path: Path, number: int) -> str:
    relative = os.path.relpath(os.path.join(root, name), root)
    if not name or not (root / relative).is_file():
        raise UserError(
            f"Line {number} of {path} names {name!r}, and there is no such file in {root}; correct that line."
        )
    if relative.startswith(".."):
        raise UserError(f"Line {number} of {path} names {name!r}, which lies outside {root}; move it there.")
    return Path(relative).as_posix()


def _require_folder(root: Path) -> None:
    if not root.is_dir():
        raise UserError(f"There is no folder {root}; check the path.")


def _subfolders(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir() if p.is_dir() and not p.is_symlink() and p.name[0] != ".")


def _is_loose_image(path: Path) -> bool:
    return path.is_file() and path.name[0] != "." and path.suffix.lower() in IMAGE_SUFFIXES


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
