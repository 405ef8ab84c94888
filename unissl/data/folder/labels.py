"""A label file: a CSV file with the label of some images of a folder.

The separator is a comma, semicolon or tab; header, byte-order mark, quotes and either line ending are optional. A file
may be given relative to the image folder or to the CSV file, absolute, with backslashes, in another case or without its
suffix. An apostrophe before a formula is removed (:mod:`unissl.utils.csv_cells`). Ambiguous lines are errors: a label
on the wrong image is worse than a question. A file with conflicting labels is used as unlabelled and reported, unless a
class would lose its last label.
"""

from __future__ import annotations

import csv
import io
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path

from unissl.errors import UserError, shortened
from unissl.utils.bounded_io import open_file
from unissl.utils.csv_cells import from_cell

FILE_COLUMNS = (
    "file", "file_name", "filename", "file_path", "filepath", "path", "image_path", "image_file", "image_name",
    "image", "img", "img_path", "img_name", "photo", "picture", "image_id", "img_id", "id", "name",
)  # fmt: skip
LABEL_COLUMNS = (
    "label", "labels", "class", "class_name", "classname", "category", "category_name", "target", "class_label",
    "label_name", "species", "tag", "y", "class_id", "category_id", "label_id",
)  # fmt: skip
"""If a header has several of these names, the first in the list counts: ids come last."""
GROUP_COLUMN = "group"
"""Optional: images of one series, patient or burst."""
SEPARATORS = ",;\t"
NO_LABEL = ("", "-1")
SUFFIX = re.compile(r"(?<=[^/\0])\.[^./\0]*(?=\0|\Z)")
"""Suffixes of names that are separated by NUL."""
MAX_SAMPLED = 1000
"""Lines without a header that decide which column has the files."""
MAX_NAMED_LABELS = 5
"""Conflicting labels of a file that a message names."""
CONFLICTING_LABELS = "has several labels in the label file"
"""Start of the image issue for files with conflicting labels."""

Line = tuple[int, tuple[str, ...]]
"""Line number and cells; tuples of strings cost the garbage collector nothing, however many there are."""


@dataclass(frozen=True)
class FileLabels:
    """``labels`` maps a relative path to its label, None if it is empty or conflicting; ``conflicts`` maps a path to
    all its conflicting labels."""

    labels: dict[str, str | None]
    conflicts: dict[str, tuple[str | None, ...]]
    groups: dict[str, str] | None = None
    """Path -> group, if the file has a column group."""

    def issues(self) -> dict[str, tuple[str, ...]]:
        """Message -> files with conflicting labels."""
        files: dict[str, list[str]] = {}
        for file, labels in sorted(self.conflicts.items()):
            files.setdefault(f"{CONFLICTING_LABELS} ({_join_labels(labels)}); used without a label", []).append(file)
        return {message: tuple(several) for message, several in files.items()}


def read_label_file(path: Path, root: Path, images: Iterable[str]) -> FileLabels:
    """The labels in the CSV file ``path``; ``images`` are the relative paths of all images below ``root``."""
    lines = _read_lines(path)
    matcher = _FileMatcher(path, root, images)
    file_column, label_column, has_header = _find_columns(path, lines, matcher)
    header = [cell.lower() for cell in lines[0][1]] if has_header else []
    group_column = header.index(GROUP_COLUMN) if GROUP_COLUMN in header else None
    min_cells = max(file_column, label_column, group_column or 0) + 1
    groups: dict[str, str] = {}
    labels: dict[str, str | None] = {}
    conflicts: dict[str, set[str | None]] = {}
    for number, cells in lines[has_header:]:
        if len(cells) < min_cells:
            raise UserError(f"Line {number} of {path} has too few columns; give a file and a label.")
        file = matcher.match(from_cell(cells[file_column]), number)
        if group_column is not None and cells[group_column]:
            group = from_cell(cells[group_column])
            if groups.setdefault(file, group) != group:
                raise UserError(
                    f"Line {number} of {path} puts {shortened(file)!r} into the group {shortened(group)!r}, and another"
                    f" line into {shortened(groups[file])!r}; keep one group per file."
                )
        label = None if cells[label_column] in NO_LABEL else from_cell(cells[label_column])
        first = labels.setdefault(file, label)
        if first != label:
            conflicts.setdefault(file, {first}).add(label)
    labels.update(dict.fromkeys(conflicts))
    ordered = {
        file: tuple(sorted(several, key=lambda label: (label is None, label or "")))  # none last
        for file, several in conflicts.items()
    }
    file_labels = FileLabels(labels, ordered, None if group_column is None else groups)
    _require_a_label_of_each_class(path, file_labels)
    return file_labels


def _require_a_label_of_each_class(path: Path, file_labels: FileLabels) -> None:
    classes = set(file_labels.labels.values())
    for file, labels in file_labels.conflicts.items():
        lost = next((label for label in labels if label not in classes and label is not None), None)
        if lost is not None:
            raise UserError(
                f"{path} gives {file if file.isprintable() else repr(file)} several labels, {_join_labels(labels)}, "
                f"and no other image is labelled {shortened(lost)!r}; keep one of them."
            )


def _join_labels(labels: Sequence[str | None]) -> str:
    shown = ["none" if label is None else repr(shortened(label)) for label in labels[:MAX_NAMED_LABELS]]
    return " and ".join(shown + ([f"{len(labels) - len(shown)} more"] if len(labels) > len(shown) else []))


def _read_lines(path: Path) -> list[Line]:
    """All lines that are not blank, by the separator that gives most of them as many cells as the first has."""
    text = _read_text(path)
    parsed: list[list[Line]] = []
    problem = ""
    for separator in [separator for separator in SEPARATORS if separator in text] or [SEPARATORS[0]]:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        try:
            lines = [(reader.line_num, tuple([cell.strip() for cell in row])) for row in reader]
        except csv.Error as error:
            problem = problem or f"line {reader.line_num}: {error}"
            continue
        parsed.append([line for line in lines if any(line[1])])
    if not parsed:
        raise UserError(f"{path} is not a table of cells ({problem}); save it as CSV again.")
    lines = max(parsed, key=_count_regular)
    if not lines:
        raise UserError(f"{path} is empty; give a file and a label in each line.")
    return lines


def _count_regular(lines: list[Line]) -> int:
    """The number of lines with as many cells as the first; 0 for a single column."""
    width = len(lines[0][1]) if lines else 0
    return sum(len(cells) == width for _, cells in lines) if width > 1 else 0


def _read_text(path: Path) -> str:
    try:
        with open_file(path) as file:
            return file.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text; save it as CSV with UTF-8 encoding.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the file given with --labels.") from None


def _find_columns(path: Path, lines: list[Line], matcher: _FileMatcher) -> tuple[int, int, bool]:
    """Index of the file column and of the label column, and whether the first line is a header.

    One known name of two is enough if the other cell is no file. Without a header, the column with more file names is
    the file column.
    """
    cells = lines[0][1]
    header = [cell.lower().replace(" ", "_").replace("-", "_") for cell in cells]
    file = next((header.index(name) for name in FILE_COLUMNS if name in header), None)
    label = next((header.index(name) for name in LABEL_COLUMNS if name in header), None)
    if len(header) == 2 and (file is None or label is None):
        if (file is None and label is None) or any(matcher.is_file(from_cell(cell)) for cell in cells):
            sample = [row for _, row in lines[:MAX_SAMPLED]]
            for is_file in (matcher.is_exact, matcher.is_file):
                counts = [sum(len(row) > i and is_file(from_cell(row[i])) for row in sample) for i in (0, 1)]
                if counts[0] != counts[1]:
                    return (0, 1, False) if counts[0] > counts[1] else (1, 0, False)
            return 0, 1, False
        file = 1 - label if label is not None and file is None else file
        label = 1 - file if file is not None and label is None else label
    if file is None or label is None:
        raise UserError(
            f"{path} needs a header line with the columns file and label, separated by , ; or tab"
            f" (found: {shortened(', '.join(header))})."
        )
    name, count = Counter(name for name in header if name).most_common(1)[0]
    if count > 1:
        raise UserError(f"{path} has {count} columns named {shortened(name)!r}; rename or remove all but one of them.")
    return file, label, True


class _Folder:
    """A folder that a cell may mean; ``inside`` is its path below the image folder, by name or by way of symbolic
    links, with a slash at the end, and None if it is elsewhere."""

    def __init__(self, path: str, root: Path) -> None:
        self.path = path
        inside = _below(path, os.path.abspath(root))
        self.inside = _below(os.path.realpath(path), os.path.realpath(root)) if inside is None else inside
        self.key = None if self.inside is None else _folded(self.inside)

    def has_file(self, name: str) -> bool:
        return name in self._entries and os.path.isfile(os.path.join(self.path, name))

    @cached_property
    def _entries(self) -> frozenset[str]:
        try:
            return frozenset(os.listdir(self.path))
        except OSError:
            return frozenset()


Candidate = tuple[_Folder, str]
"""A folder, and the name of a file in it."""


class _FileMatcher:
    """Finds the image that a cell names. Folders are resolved once each, so that most cells cost a few lookups."""

    def __init__(self, path: Path, root: Path, images: Iterable[str]) -> None:
        self.path, self.root = path, root
        self._images = dict.fromkeys(images)  # in their order: mostly sorted
        self._bases = tuple(dict.fromkeys((os.path.abspath(root), os.path.abspath(path.parent))))
        self._folder, self._folders = cache(partial(_Folder, root=root)), cache(self._resolve)

    def is_exact(self, cell: str) -> bool:
        """Whether a cell names a file, listed or not, in its exact spelling."""
        return cell in self._images or any(folder.has_file(name) for folder, name in self._candidates(cell))

    def is_file(self, cell: str) -> bool:
        """Whether a cell names a file, listed or not, in any spelling."""
        return self.is_exact(cell) or bool(self._similar(self._candidates(cell)))

    def match(self, cell: str, number: int) -> str:
        """The relative path of the image that ``cell`` of line ``number`` names."""
        if cell in self._images:
            return cell
        outside, candidates = False, self._candidates(cell)
        for folder, name in candidates:
            if folder.inside is not None and (file := folder.inside + name) in self._images:
                return file
            if folder.has_file(name):
                if folder.inside is not None:
                    return self._as_listed(folder, name)
                outside = True
        similar = () if outside else self._similar(candidates)
        if len(similar) == 1:
            return similar[0]
        line = f"Line {number} of {self.path} names {shortened(cell)!r}"
        if outside:
            raise UserError(f"{line}, which is outside {self.root}; move it there.")
        if similar:
            one, other = (shortened(name) for name in similar[:2])
            raise UserError(f"{line}, which may be {one!r} or {other!r}; write the path in full.")
        raise UserError(f"{line}, and there is no such file in {self.root}; correct that line.")

    def _candidates(self, cell: str) -> list[Candidate]:
        """What a cell may mean: a file relative to the image folder, or to the CSV file."""
        if not cell or "\0" in cell:
            return []
        candidates = []
        for spelling in (cell, cell.replace("\\", "/")) if "\\" in cell else (cell,):
            parent, slash, name = spelling.rpartition("/")
            if name in ("", ".", ".."):
                parent, slash, name = os.path.normpath(spelling).rpartition("/")
            candidates += [(folder, name) for folder in self._folders(parent + slash)]
        return candidates

    def _resolve(self, parent: str) -> tuple[_Folder, ...]:
        return tuple(self._folder(os.path.normpath(os.path.join(base, parent))) for base in self._bases)

    def _as_listed(self, folder: _Folder, name: str) -> str:
        """A file that is there; in the listed spelling, where the file system takes several for the same file."""
        path, similar = os.path.join(folder.path, name), self._similar([(folder, name)])
        listed = (image for image in similar if os.path.samefile(self.root / image, path))
        return next(listed, f"{folder.inside}{name}")

    def _similar(self, candidates: Iterable[Candidate]) -> tuple[str, ...]:
        """Listed images that differ from a cell in case, in how accents are composed or by a missing suffix."""
        keys = [folder.key + _folded(name) for folder, name in candidates if folder.key is not None]
        for index in (self._by_name, self._by_stem):
            for key in keys:
                if key in index:
                    return index[key]
        return ()

    @cached_property
    def _by_name(self) -> Mapping[str, tuple[str, ...]]:
        return _index((_folded(image), image) for image in sorted(self._images))

    @cached_property
    def _by_stem(self) -> Mapping[str, tuple[str, ...]]:
        return _index((os.path.splitext(_folded(image))[0], image) for image in sorted(self._images))


def _index(pairs: Iterable[tuple[str, str]]) -> Mapping[str, tuple[str, ...]]:
    """Key -> its values, few for each."""
    index: dict[str, tuple[str, ...]] = {}
    for key, value in pairs:
        index[key] = (*index[key], value) if key in index else (value,)
    return index


def _below(path: str, folder: str) -> str | None:
    """``path`` relative to ``folder``, with slashes and one at the end; None if it is not inside. Both are absolute and
    normalised."""
    prefix = folder.rstrip(os.sep) + os.sep
    inside = path.rstrip(os.sep) + os.sep
    return inside[len(prefix) :].replace(os.sep, "/") if inside.startswith(prefix) else None


def _folded(name: str) -> str:
    return name.lower() if name.isascii() else unicodedata.normalize("NFC", name).casefold()
