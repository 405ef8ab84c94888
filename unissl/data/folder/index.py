"""Which images in a folder have which label: found from folder names or a CSV file, without decoding any image.

Three layouts are understood (unlabeled and labeled may be spelt with one l or two, in any case):

    root/<class>/**             and optionally  root/unlabelled/**
    root/labelled/<class>/**    and optionally  root/unlabelled/**
    root/**                     with a CSV file that names some of the images and their labels

Images that lie directly in the root are unlabelled, and so are those with an empty label or -1 in the CSV. The order is
that of the sorted relative paths. What looks like an image and is not used is listed with the reason.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from unissl.data.dataset import require_two_classes, sort_class_names
from unissl.data.folder.labels import FileLabels, read_label_file
from unissl.data.images.decode import RAW_SUFFIXES, looks_like_image
from unissl.errors import UserError, did_you_mean
from unissl.types import UNLABELLED

IMAGE_SUFFIXES = RAW_SUFFIXES | {
    ".apng", ".avif", ".avifs", ".blp", ".bmp", ".bw", ".cur", ".dcx", ".dds", ".dib", ".gif", ".heic", ".heif", ".hif",
    ".icb", ".icns", ".ico", ".im", ".j2c", ".j2k", ".jfif", ".jp2", ".jpc", ".jpe", ".jpeg", ".jpf", ".jpg", ".jpx",
    ".mpo", ".msp", ".pbm", ".pcd", ".pcx", ".pfm", ".pgm", ".png", ".pnm", ".ppm", ".psd", ".pxr", ".qoi", ".ras",
    ".rgb", ".rgba", ".sgi", ".svg", ".tga", ".tif", ".tiff", ".vda", ".vst", ".webp", ".xbm", ".xpm",
}  # fmt: skip
LABELLED_FOLDERS = {"labeled", "labelled"}
UNLABELLED_FOLDERS = {"unlabeled", "unlabelled"}
OTHER_PARTS = {"test", "val", "valid", "validation"}
NOBODYS_FOLDERS = {"__macosx", "@eadir", "$recycle.bin", "system volume information"}
"""Made by operating systems and network drives; the small images in them are not the user's."""

Skipped = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class FolderIndex:
    """Paths relative to the root, sorted, with a label each; ``skipped`` has path and reason of what is not used,
    ``remarks`` what there is to say about some that are."""

    files: tuple[str, ...]
    labels: npt.NDArray[np.int64]
    class_names: tuple[str, ...]
    skipped: Skipped = ()
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def subset(self, rows: npt.NDArray[np.int64]) -> FolderIndex:
        """These rows only. What was skipped or remarked stays with the whole."""
        return FolderIndex(tuple(self.files[row] for row in rows), self.labels[rows], self.class_names)


@dataclass(frozen=True)
class FolderScan:
    """The images below a folder, what looks like one and cannot be, and the folders that may not be opened."""

    files: list[str]
    skipped: dict[str, str]
    closed: dict[str, str]

    def left_out(self) -> Skipped:
        return tuple(sorted({**self.skipped, **self.closed}.items()))


def index_folder(root: Path, labels: str | None, without: Path | None) -> FolderIndex:
    """Everything to learn from under ``root``; ``without`` is a test folder that may lie inside it."""
    tops = _subfolders(root)
    found = find_images(root, without)
    skipped = found.left_out()
    remarks: Mapping[str, tuple[str, ...]] = {}
    if labels is not None:
        given = _labels_from_csv(root, labels, found, without)
        named, remarks = given.named, given.remarks()
    else:
        _refuse_parts(root, tops)
        tops = [name for name in tops if without is None or not _same(root / name, without)]
        named, unused = _labels_from_folders(root, tops, found)
        skipped += unused
        if not named:
            raise UserError(f"The folder {root} holds no images; put them into one subfolder per class.")
    class_names = sort_class_names(name for name in named.values() if name is not None)
    require_two_classes(class_names, labels or str(root))
    return replace(_layout(named, class_names, skipped), remarks=remarks)


def index_test_folder(root: Path, class_names: tuple[str, ...]) -> FolderIndex:
    """A folder with one subfolder per class, whose names must be among the classes that are learnt."""
    tops = _subfolders(root)
    found = find_images(root)
    for name in tops:
        if name not in class_names and name not in found.skipped:
            known = did_you_mean(name, list(class_names))
            raise UserError(f"The test folder {root} has a class {name!r} that the training images have not.{known}")
    _refuse_closed(root, found)
    named: dict[str, str | None] = {file: _top(file) for file in found.files if _top(file) is not None}
    loose = tuple((file, "lies in no class folder, so its class is unknown") for file in found.files if not _top(file))
    if not named:
        raise UserError(f"The test folder {root} holds no images; put them into one subfolder per class.")
    return _layout(named, class_names, found.left_out() + loose)


def list_images(folder: Path, without: Path | None = None) -> list[str]:
    """Relative paths of all image files below ``folder``, sorted."""
    return find_images(folder, without).files


def find_images(folder: Path, without: Path | None = None) -> FolderScan:
    """Walk through ``folder`` and the folders that links in it lead to, each once, except for ``without``.

    A link to a place inside or around ``folder`` is not followed: it would show images twice, or lead in circles.
    """
    home = os.path.realpath(folder)
    excluded = os.path.realpath(without) if without is not None else None
    entered = {home}
    found = FolderScan([], {}, {})

    def relative(path: str) -> str:
        return Path(os.path.relpath(path, folder)).as_posix()

    def note_closed(error: OSError) -> None:
        found.closed[relative(str(error.filename))] = f"folder that may not be read: {error.strerror}"

    for place, folders, files in os.walk(folder, onerror=note_closed, followlinks=True):
        if not folders and not files and os.path.splitext(place)[1].lower() in IMAGE_SUFFIXES:
            found.skipped[relative(place)] = "a folder, not an image"
        for name in sorted(folders):
            path = os.path.join(place, name)
            real = os.path.realpath(path)
            linked = real != os.path.join(os.path.realpath(place), name)
            if _is_hidden(name) or (excluded is not None and _is_within(real, excluded)):
                folders.remove(name)
            elif real in entered or (linked and (_is_within(real, home) or _is_within(home, real))):
                folders.remove(name)
                found.skipped[relative(path)] = "a link to a folder that is read elsewhere or leads in circles"
            entered.add(real)
        folders.sort()
        for name in files:
            path = os.path.join(place, name)
            named_so = os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
            if _is_hidden(name):
                continue
            if os.path.exists(path) and not os.path.isfile(path):
                if named_so:
                    found.skipped[relative(path)] = "a pipe or device, not a file"
            elif named_so or looks_like_image(path):
                found.files.append(relative(path))
    found.files.sort()
    return found


def _layout(named: Mapping[str, str | None], class_names: tuple[str, ...], skipped: Skipped) -> FolderIndex:
    files = sorted(named)
    number = {name: c for c, name in enumerate(class_names)}
    labels = [UNLABELLED if (name := named[file]) is None else number[name] for file in files]
    return FolderIndex(tuple(files), np.array(labels, dtype=np.int64), class_names, skipped)


def _labels_from_csv(root: Path, labels: str, found: FolderScan, without: Path | None) -> FileLabels:
    """Every image with its label or None. What lies in the test folder is not for learning, whatever the file says."""
    path = Path(labels) if Path(labels).is_file() else root / labels
    if not path.is_file():
        raise UserError(f"There is no labels file {labels}; check the path given with --labels.")
    given = read_label_file(path, root, found.files)
    named, contradicted = {**dict.fromkeys(found.files), **given.named}, given.contradicted
    if without is not None:
        tested = os.path.realpath(without)
        named = {f: label for f, label in named.items() if not _is_within(os.path.realpath(root / f), tested)}
        contradicted = {f: labels for f, labels in contradicted.items() if f in named}
    return FileLabels(named, contradicted)


def _labels_from_folders(root: Path, tops: Sequence[str], found: FolderScan) -> tuple[dict[str, str | None], Skipped]:
    """Relative path to class name, None for the pool; and what lies beside labelled and unlabelled folders."""
    pool = {name for name in tops if name.lower() in UNLABELLED_FOLDERS}
    labelled = {name for name in tops if name.lower() in LABELLED_FOLDERS}
    homes = set(tops) - pool
    if labelled:
        homes = {f"{top}/{name}" for top in labelled for name in _subfolders(root / top)}
    named: dict[str, str | None] = {}
    filled: set[str] = set()
    beside: Counter[str] = Counter()
    for file in found.files:
        top = _top(file)
        home = "/".join(file.split("/")[: 2 if labelled else 1])
        if top is None or top in pool:
            named[file] = None
        elif home in homes:
            named[file] = home.split("/")[-1]
            filled.add(home)
        else:
            beside[file if top in labelled else top] += 1
    _refuse_closed(root, found, pool)
    for home in sorted(homes - filled):
        if home not in found.skipped:
            raise UserError(f"The class folder {root / home} holds no image; add at least one or remove the folder.")
    unused = ((name, f"{count} image(s) in no class folder and not in the pool") for name, count in beside.items())
    return named, tuple(unused)


def _refuse_closed(root: Path, found: FolderScan, pool: set[str] | None = None) -> None:
    """A folder of labelled images that may not be read would lose labels."""
    for folder, reason in found.closed.items():
        if folder != "." and folder.split("/")[0] not in (pool or ()):
            raise UserError(f"{root / folder} is a {reason}; change its permissions or remove it.")


def _refuse_parts(root: Path, tops: Sequence[str]) -> None:
    parts = set(tops) - UNLABELLED_FOLDERS
    if {"train"} < parts <= {"train"} | OTHER_PARTS:
        raise UserError(
            f"{root} is cut into train and other parts; give --root {root / 'train'} and --test for the other."
        )


def _subfolders(root: Path) -> list[str]:
    if not root.is_dir():
        raise UserError(f"There is no folder {root}; check the path.")
    return sorted(path.name for path in root.iterdir() if path.is_dir() and not _is_hidden(path.name))


def _top(file: str) -> str | None:
    """The uppermost folder of a relative path; None for a file that lies in none."""
    return file.split("/")[0] if "/" in file else None


def _is_hidden(name: str) -> bool:
    return name[0] == "." or name.lower() in NOBODYS_FOLDERS


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
