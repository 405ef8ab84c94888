"""The index of a folder of images: files and their labels, by folder names or a label file. Decodes no image.

Three layouts are supported (unlabeled and labeled may be spelt with one l or two, in any case):

    root/<class>/**             and optionally  root/unlabelled/**
    root/labelled/<class>/**    and optionally  root/unlabelled/**
    root/**                     with a CSV file that names some of the images and their labels

Images directly in the root are unlabelled, and so are those with an empty label or -1 in the CSV. The order is that of
the sorted relative paths. Files that look like an image and are not used are listed with the reason.

Links to files and folders elsewhere are followed only with ``data.follow_links``: a folder from others could make a
training read anything that its user may read. The root itself may be a link, and so may the files of ``listed_only``,
which the user has named one by one. A link to a file inside the folder is one more image.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from unissl.data.dataset import DataConfig, require_distinct_names, require_two_classes, sort_class_names
from unissl.data.folder.labels import FileLabels, read_label_file
from unissl.data.groups import require_separable
from unissl.data.images.decode import IMAGE_SUFFIXES, looks_like_image
from unissl.errors import UserError, did_you_mean
from unissl.types import UNLABELLED, Labels, Rows
from unissl.utils.cache import size_and_time

LABELLED_FOLDERS = {"labeled", "labelled"}
UNLABELLED_FOLDERS = {"unlabeled", "unlabelled"}
OTHER_PARTS = {"test", "val", "valid", "validation"}
SYSTEM_FOLDERS = {"__macosx", "@eadir", "$recycle.bin", "system volume information"}
"""Written by operating systems and network drives; the small images in them are not the user's."""
LINK_OUT = "a link out of the folder, which is not followed; data.follow_links=true follows it"
FOLLOW = "copy the images, or follow links with --set data.follow_links=true"
ARCHIVE_SUFFIXES = {".7z", ".bz2", ".gz", ".rar", ".tar", ".tgz", ".xz", ".zip"}

Skipped = tuple[tuple[str, str], ...]
FileStat = tuple[int, int]
"""Size in bytes and modification time in ns; -1, -1 for a file that cannot be opened."""


@dataclass(frozen=True)
class FolderIndex:
    """The one result of walking a folder and parsing its label file; nothing after it needs to do either again.

    ``files`` are paths relative to ``root``, sorted, with a label and a ``stats`` entry each. ``skipped`` has path and
    reason of files that are not used, ``issues`` maps a message to used files. ``test`` is the index of the test
    folder, if there is one.
    """

    root: Path
    files: tuple[str, ...]
    stats: tuple[FileStat, ...]
    labels: Labels
    class_names: tuple[str, ...]
    skipped: Skipped = ()
    issues: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    test: FolderIndex | None = None
    groups: tuple[str | None, ...] | None = None
    """The group of each file, None for one by itself; None if there are no groups."""

    @property
    def paths(self) -> list[str]:
        return [os.path.join(self.root, file) for file in self.files]

    def subset(self, rows: Rows) -> FolderIndex:
        """These rows only, without ``skipped`` and ``issues``, which belong to the whole folder."""
        files = tuple(self.files[row] for row in rows)
        stats = tuple(self.stats[row] for row in rows)
        groups = None if self.groups is None else tuple(self.groups[row] for row in rows)
        return FolderIndex(self.root, files, stats, self.labels[rows], self.class_names, groups=groups)


@dataclass(frozen=True)
class FolderScan:
    """One walk through a folder: image files, all subfolders, entries that look like an image and are none, and
    folders without read permission. Paths are relative."""

    files: dict[str, FileStat] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    def subfolders(self, parent: str = "") -> list[str]:
        """Names of the folders directly below ``parent``, sorted."""
        return sorted(name for top, _, name in (path.rpartition("/") for path in self.folders) if top == parent)


def scan_folder(config: DataConfig) -> FolderIndex | None:
    """The index of the image folder of ``config``, and of its test folder; None for data that are no folder."""
    if config.name != "folder":
        return None
    if config.root is None:
        raise UserError("Give the folder that holds the images with --images or --root.")
    test_root = Path(config.test) if config.test is not None else None
    if config.listed_only:
        if config.labels is None:
            raise UserError("data.listed_only uses the files that a label file names; give one with --labels.")
        labels = read_label_file(Path(config.labels), Path(config.root), {})  # the folder is not walked
        index = _training_index(Path(config.root), labels, FolderScan(), config.labels)
    else:
        index = index_folder(Path(config.root), config.labels, test_root, config.follow_links)
    if config.groups == "folder":
        if index.groups is not None:
            raise UserError("The label file has a column group; leave out --groups folder, or remove the column.")
        # Images directly in the root are by themselves.
        index = replace(index, groups=tuple(file.rpartition("/")[0] or None for file in index.files))
    if index.groups is not None:
        require_separable(index.groups, index.labels, index.class_names)
    if test_root is None:
        return index
    return replace(index, test=index_test_folder(test_root, index.class_names, config.follow_links))


def index_folder(root: Path, labels: str | None, test_root: Path | None, follow_links: bool = False) -> FolderIndex:
    """All training images below ``root``; ``test_root`` is a test folder that may be inside it."""
    scan = find_images(root, test_root, follow_links)
    if labels is not None:
        file_labels = _labels_from_csv(root, labels, scan, test_root)
        if not follow_links:
            _check_labelled_links(root, file_labels, scan)
        return _training_index(root, file_labels, scan, labels)
    folders = scan.subfolders()
    _check_no_parts(root, folders)
    real_test = None if test_root is None else os.path.realpath(test_root)
    folders = [name for name in folders if os.path.realpath(root / name) != real_test]
    label_names, unused = _labels_from_folders(root, folders, scan)
    if not label_names:
        raise UserError(f"The folder {root} holds no images; put them into one subfolder per class.")
    if not any(label_names.values()):
        raise UserError(
            f"{root} has no class folders; put the images into one subfolder per class, or give --labels labels.csv"
            " with the columns file,label."
        )
    index = _training_index(root, FileLabels(label_names, {}), scan, str(root))
    return replace(index, skipped=index.skipped + unused)


def _training_index(root: Path, file_labels: FileLabels, scan: FolderScan, where: str) -> FolderIndex:
    """``where`` is the label file or folder that defines the classes, for messages."""
    class_names = sort_class_names(name for name in file_labels.labels.values() if name is not None)
    require_distinct_names(class_names, where)
    require_two_classes(class_names, where)
    index = _make_index(root, file_labels.labels, class_names, scan)
    groups = None if file_labels.groups is None else tuple(file_labels.groups.get(file) for file in index.files)
    return replace(index, issues=file_labels.issues(), groups=groups)


def index_test_folder(root: Path, class_names: tuple[str, ...], follow_links: bool = False) -> FolderIndex:
    """A folder with one subfolder per class, whose names must be among ``class_names``."""
    scan = find_images(root, follow_links=follow_links)
    for name in scan.subfolders():
        if name not in class_names and name not in scan.skipped:
            known = did_you_mean(name, list(class_names))
            raise UserError(f"The test folder {root} has a class {name!r} that the training images have not.{known}")
    _check_readable(root, scan)
    _check_linked_folders(root, scan, scan.subfolders())
    label_names = {file: top for file in scan.files if (top := _top_folder(file)) is not None}
    loose = tuple((file, "in no class folder, so its class is unknown") for file in scan.files if not _top_folder(file))
    if not label_names:
        raise UserError(f"The test folder {root} holds no images; put them into one subfolder per class.")
    index = _make_index(root, label_names, class_names, scan)
    return replace(index, skipped=index.skipped + loose)


def require_out_elsewhere(out: Path, config: DataConfig) -> None:
    """Refuse a run folder among the images: the next training or prediction would take its charts for images.

    A hidden folder is never searched, and neither is any other if only listed files are used.
    """
    if config.name != "folder" or config.listed_only:
        return
    for root in (config.root, config.test):
        if root is None:
            continue
        place, top = os.path.realpath(out), os.path.realpath(root)
        if _is_within(place, top) and not any(map(_is_hidden, Path(os.path.relpath(place, top)).parts)):
            raise UserError(
                f"The run folder {out} is inside the images folder {root}, so its charts would become images; name one "
                "elsewhere with --out."
            )


def find_images(folder: Path, excluded: Path | None = None, follow_links: bool = False) -> FolderScan:
    """Walk through ``folder``, and with ``follow_links`` through the folders that its links lead to, each once, except
    for ``excluded``.

    A link to a folder inside or around ``folder`` is never followed: it would list images twice, or lead in circles.
    """
    _require_folder(folder)
    home = os.path.realpath(folder)
    real_excluded = os.path.realpath(excluded) if excluded is not None else None
    entered = {home}
    scan = FolderScan()

    def relative(path: str) -> str:
        return Path(os.path.relpath(path, folder)).as_posix()

    def note_unreadable(error: OSError) -> None:
        scan.unreadable[relative(str(error.filename))] = f"folder that may not be read: {error.strerror}"

    for parent, folders, files in os.walk(folder, onerror=note_unreadable, followlinks=True):
        prefix = "" if relative(parent) == "." else relative(parent) + "/"
        real_parent = os.path.realpath(parent)
        if not folders and not files and os.path.splitext(parent)[1].lower() in IMAGE_SUFFIXES:
            scan.skipped[relative(parent)] = "a folder, not an image"
        for name in sorted(folders):
            real = os.path.realpath(os.path.join(parent, name))
            linked = real != os.path.join(real_parent, name)
            if _is_hidden(name):
                folders.remove(name)
                continue
            scan.folders.append(prefix + name)
            if real_excluded is not None and _is_within(real, real_excluded):
                folders.remove(name)
            elif real in entered or (linked and (_is_within(real, home) or _is_within(home, real))):
                folders.remove(name)
                scan.skipped[prefix + name] = "a link to a folder that is read elsewhere or leads in circles"
            elif linked and not follow_links:
                folders.remove(name)
                scan.skipped[prefix + name] = LINK_OUT
                continue
            entered.add(real)
        folders.sort()
        for name in files:
            if not _is_hidden(name):
                _scan_file(os.path.join(parent, name), prefix + name, scan, None if follow_links else home)
    if "." in scan.unreadable:
        raise UserError(f"The folder {folder} may not be read; change its permissions.")
    return replace(scan, files=dict(sorted(scan.files.items())))


def _scan_file(path: str, relative: str, scan: FolderScan, bounds: str | None) -> None:
    """Enter a file; a link to one outside the folder ``bounds`` is skipped, and not opened."""
    suffix = os.path.splitext(path)[1].lower()
    has_image_suffix = suffix in IMAGE_SUFFIXES
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            status = os.stat(path)
            if bounds is not None and not _is_within(os.path.realpath(path), bounds):
                if has_image_suffix or not suffix:
                    scan.skipped[relative] = LINK_OUT
                return
    except OSError:  # a dangling link, which the decoder reports
        if has_image_suffix:
            scan.files[relative] = -1, -1
        return
    if not stat.S_ISREG(status.st_mode):
        if has_image_suffix:
            scan.skipped[relative] = "a pipe or device, not a file"
    elif has_image_suffix or looks_like_image(path):
        scan.files[relative] = status.st_size, status.st_mtime_ns


def _make_index(
    root: Path, label_names: Mapping[str, str | None], class_names: tuple[str, ...], scan: FolderScan
) -> FolderIndex:
    files = tuple(sorted(label_names))
    number = {name: c for c, name in enumerate(class_names)}
    labels = [UNLABELLED if (name := label_names[file]) is None else number[name] for file in files]
    # A label file may name files that the walk passes over, such as hidden ones.
    stats = tuple(scan.files.get(file) or size_and_time(root / file) for file in files)
    skipped = tuple(sorted({**scan.skipped, **scan.unreadable}.items()))
    return FolderIndex(root, files, stats, np.array(labels, dtype=np.int64), class_names, skipped)


def _labels_from_csv(root: Path, labels: str, scan: FolderScan, test_root: Path | None) -> FileLabels:
    """Every training image with its label or None; images in the test folder are left out, labelled or not."""
    path = Path(labels) if Path(labels).is_file() else root / labels
    if not path.is_file():
        raise UserError(f"There is no labels file {labels}; check the path given with --labels.")
    file_labels = read_label_file(path, root, scan.files)
    label_names = {**dict.fromkeys(scan.files), **file_labels.labels}
    if test_root is None:
        return replace(file_labels, labels=label_names)
    real_test = os.path.realpath(test_root)

    def is_tested(file: str) -> bool:
        """The walk left the test folder out, but a link or the label file may name a file in it."""
        may_be = file not in scan.files or os.path.islink(os.path.join(root, file))
        return may_be and _is_within(_real(root, file), real_test)

    label_names = {file: name for file, name in label_names.items() if not is_tested(file)}
    conflicts = {file: several for file, several in file_labels.conflicts.items() if file in label_names}
    return FileLabels(label_names, conflicts, file_labels.groups)


def _check_labelled_links(root: Path, file_labels: FileLabels, scan: FolderScan) -> None:
    """A label file may name files that the walk skipped; a label must not be lost in silence."""
    home = os.path.realpath(root)
    for file in file_labels.labels:
        if file not in scan.files and not _is_within(_real(root, file), home):
            raise UserError(f"The label file names {root / file}, which is behind a link out of {root}; {FOLLOW}.")


def _check_linked_folders(root: Path, scan: FolderScan, folders: Iterable[str]) -> None:
    """Class folders are often links to other disks: name the setting, since skipping one would lose a class."""
    for folder in folders:
        if scan.skipped.get(folder) == LINK_OUT:
            target = os.path.realpath(root / folder)
            raise UserError(f"The folder {root / folder} is a link to {target}, outside of {root}; {FOLLOW}.")


def _real(root: Path, file: str) -> str:
    return os.path.realpath(os.path.join(root, file))


def _labels_from_folders(root: Path, folders: Sequence[str], scan: FolderScan) -> tuple[dict[str, str | None], Skipped]:
    """Relative path -> class name, None for the pool; and the files in neither a class folder nor the pool."""
    pool = {name for name in folders if name.lower() in UNLABELLED_FOLDERS}
    labelled = {name for name in folders if name.lower() in LABELLED_FOLDERS}
    class_folders = set(folders) - pool
    if labelled:
        class_folders = {f"{top}/{name}" for top in labelled for name in scan.subfolders(top)}
    _check_unicode(root, class_folders)
    label_names: dict[str, str | None] = {}
    filled: set[str] = set()
    unused: Counter[str] = Counter()
    for file in scan.files:
        top = _top_folder(file)
        folder = "/".join(file.split("/")[: 2 if labelled else 1])
        if top is None or top in pool:
            label_names[file] = None
        elif folder in class_folders:
            label_names[file] = folder.split("/")[-1]
            filled.add(folder)
        else:
            unused[file if top in labelled else top] += 1
    _check_readable(root, scan, pool)
    _check_linked_folders(root, scan, sorted(pool | labelled | class_folders))
    for folder in sorted(class_folders - filled):
        if any(file.startswith(f"{folder}/") for file, reason in scan.skipped.items() if reason == LINK_OUT):
            raise UserError(f"The class folder {root / folder} holds only links to files elsewhere; {FOLLOW}.")
        if folder not in scan.skipped:
            raise UserError(f"The class folder {root / folder} holds no image; add at least one or remove the folder.")
    messages = ((name, f"{count} image(s) in no class folder and not in the pool") for name, count in unused.items())
    return label_names, tuple(messages)


def _check_unicode(root: Path, class_folders: set[str]) -> None:
    """A class has the name of its folder in every file of the run, and all of these are UTF-8."""
    for folder in sorted(class_folders):
        try:
            folder.encode()
        except UnicodeEncodeError:
            raise UserError(f"The name of the class folder {str(root / folder)!a} is not Unicode; rename it.") from None


def _check_readable(root: Path, scan: FolderScan, pool: set[str] | None = None) -> None:
    """An unreadable folder of labelled images would lose labels."""
    for folder, reason in scan.unreadable.items():
        if folder.split("/")[0] not in (pool or ()):
            raise UserError(f"{root / folder} is a {reason}; change its permissions or remove it.")


def _check_no_parts(root: Path, folders: Sequence[str]) -> None:
    parts = {name for name in folders if name.lower() not in UNLABELLED_FOLDERS}
    if {"train"} < parts <= {"train"} | OTHER_PARTS:
        raise UserError(
            f"{root} is split into train and other parts; give --root {root / 'train'} and --test for the other."
        )


def _require_folder(root: Path) -> None:
    if root.is_file() and root.suffix.lower() in ARCHIVE_SUFFIXES:
        raise UserError(f"{root} is an archive; unpack it and give the folder instead.")
    if root.is_file():
        raise UserError(f"{root} is a file; give the folder that holds the images instead.")
    if not root.is_dir():
        raise UserError(f"There is no folder {root}; check the path.")


def _top_folder(file: str) -> str | None:
    """The first folder of a relative path; None for a file in the root."""
    return file.split("/")[0] if "/" in file else None


def _is_hidden(name: str) -> bool:
    return name[0] == "." or name.lower() in SYSTEM_FOLDERS


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
