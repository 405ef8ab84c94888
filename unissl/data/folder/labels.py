"""A label file: a CSV file with the label of some images of a folder.

The separator is a comma, semicolon or tab; header, byte-order mark, quotes and either line ending are optional. A file
may be given relative to the image folder or to the CSV file, absolute, with backslashes, in another case or without its
suffix. Ambiguous lines are errors: a label on the wrong image is worse than a question. A file with conflicting labels
is used as unlabelled and reported, unless a class would lose its last label.
"""

from __future__ import annotations

import csv
import io
import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from unissl.errors import UserError, shortened
from unissl.utils.bounded_io import open_file

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
MAX_SAMPLED = 1000
"""Lines without a header that decide which column has the files."""
CONFLICTING_LABELS = "has several labels in the label file"
"""Start of the image issue for files with conflicting labels."""

Line = tuple[int, list[str]]
"""Line number and cells."""


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
        files = _group((_join_labels(labels), file) for file, labels in sorted(self.conflicts.items()))
        return {f"{CONFLICTING_LABELS} ({labels}); used without a label": tuple(f) for labels, f in files.items()}


def read_label_file(path: Path, root: Path, images: Iterable[str]) -> FileLabels:
    """The labels in the CSV file ``path``; ``images`` are the relative paths of all images below ``root``."""
    lines = _read_lines(path)
    matcher = _FileMatcher(path, root, images)
    file_column, label_column, has_header = _find_columns(path, lines, matcher)
    group_column = _find_group_column(path, lines[0][1]) if has_header else None
    min_cells = max(file_column, label_column, -1 if group_column is None else group_column) + 1
    groups: dict[str, str] = {}
    labels: dict[str, str | None] = {}
    conflicts: dict[str, set[str | None]] = {}
    for number, cells in lines[has_header:]:
        if len(cells) < min_cells:
            raise UserError(f"Line {number} of {path} has too few columns; give a file and a label.")
        file = matcher.match(cells[file_column], number)
        if group_column is not None and cells[group_column]:
            group = cells[group_column]
            if groups.setdefault(file, group) != group:
                raise UserError(
                    f"Line {number} of {path} puts {shortened(file)!r} into the group {shortened(group)!r}, and another"
                    f" line into {shortened(groups[file])!r}; keep one group per file."
                )
        label = None if cells[label_column] in NO_LABEL else cells[label_column]
        first = labels.setdefault(file, label)
        if first != label:
            conflicts.setdefault(file, {first}).add(label)
    labels.update(dict.fromkeys(conflicts))
    ordered = {file: tuple(sorted(several, key=_none_last)) for file, several in conflicts.items()}
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


def _none_last(label: str | None) -> tuple[bool, str]:
    return label is None, label or ""


def _join_labels(labels: Sequence[str | None]) -> str:
    return " and ".join("none" if label is None else repr(shortened(label)) for label in labels)


def _read_lines(path: Path) -> list[Line]:
    """All lines that are not blank, by the separator that gives most of them as many cells as the first has."""
    text = _read_text(path)
    parsed: list[list[Line]] = []
    problem = ""
    for separator in [separator for separator in SEPARATORS if separator in text] or [SEPARATORS[0]]:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        try:
            lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
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
        if (file is None and label is None) or any(matcher.is_file(cell) for cell in cells):
            sample = [row for _, row in lines[:MAX_SAMPLED]]
            for is_file in (matcher.is_exact, matcher.is_file):
                counts = [sum(len(row) > i and is_file(row[i]) for row in sample) for i in (0, 1)]
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


def _find_group_column(path: Path, header: list[str]) -> int | None:
    found = [i for i, cell in enumerate(header) if cell.lower() == GROUP_COLUMN]
    if len(found) > 1:
        raise UserError(f"{path} has {len(found)} columns named 'group'; rename or remove all but one of them.")
    return found[0] if found else None


class _FileMatcher:
    """Finds the image that a cell names. Most cells are matched by string alone, without a look at the disk."""

    def __init__(self, path: Path, root: Path, images: Iterable[str]) -> None:
        self.path, self.root = path, root
        self._images = frozenset(images)
        self._abs_root, self._real_root = os.path.abspath(root), os.path.realpath(root)
        self._bases = tuple(dict.fromkeys((self._abs_root, os.path.abspath(path.parent))))
        self._real_folder, self._entries = cache(os.path.realpath), cache(_list_folder)
        self._prefixes = [self._abs_root + "/"]
        below_csv = _relative(self._abs_root, self._bases[-1])
        if below_csv is not None and not os.path.isdir(root / below_csv):
            self._prefixes.append(below_csv + "/")

    def is_exact(self, cell: str) -> bool:
        """Whether a cell names a file, listed or not, in its exact spelling."""
        return cell in self._images or any(self._exists(path) for path in self._candidates(cell))

    def is_file(self, cell: str) -> bool:
        """Whether a cell names a file, listed or not, in any spelling."""
        return self.is_exact(cell) or bool(self._similar(cell))

    def match(self, cell: str, number: int) -> str:
        """The relative path of the image that ``cell`` of line ``number`` names."""
        if cell in self._images:
            return cell
        for prefix in self._prefixes:
            if cell.startswith(prefix) and (relative := cell[len(prefix) :]) in self._images:
                return relative
        outside = False
        for path in self._candidates(cell):
            below = _relative(path, self._abs_root)
            if below is not None and below in self._images:
                return below
            if self._exists(path):
                below = self._below_root(path)
                if below is not None:
                    return self._as_listed(below)
                outside = True
        line = f"Line {number} of {self.path} names {shortened(cell)!r}"
        if outside:
            raise UserError(f"{line}, which is outside {self.root}; move it there.")
        similar = self._similar(cell)
        if len(similar) > 1:
            raise UserError(f"{line}, which may be {similar[0]!r} or {similar[1]!r}; write the path in full.")
        if not similar:
            raise UserError(f"{line}, and there is no such file in {self.root}; correct that line.")
        return similar[0]

    def _candidates(self, cell: str) -> Iterator[str]:
        """Absolute paths that a cell may mean: relative to the image folder, then to the CSV file."""
        if not cell or "\0" in cell:
            return
        for spelling in (cell, cell.replace("\\", "/")) if "\\" in cell else (cell,):
            for base in self._bases:
                yield os.path.normpath(os.path.join(base, spelling))

    def _exists(self, path: str) -> bool:
        folder, name = os.path.split(path)
        return name in self._entries(folder) and os.path.isfile(path)

    def _below_root(self, path: str) -> str | None:
        """Relative to the image folder, also if either of them is given by way of a symbolic link."""
        relative = _relative(path, self._abs_root)
        if relative is not None:
            return relative
        folder, name = os.path.split(path)
        return _relative(os.path.join(self._real_folder(folder), name), self._real_root)

    def _as_listed(self, relative: str) -> str:
        """The listed spelling, where the file system takes several for the same file."""
        if relative in self._images:
            return relative
        same = (name for name in self._similar(relative) if os.path.samefile(self.root / name, self.root / relative))
        return next(same, relative)

    def _similar(self, cell: str) -> list[str]:
        """Listed images that differ from the cell in case, in how accents are composed or by a missing suffix."""
        keys = [_folded(below) for path in self._candidates(cell) if (below := self._below_root(path)) is not None]
        by_name, by_stem = self._by_name_and_stem
        return next((index[key] for index in (by_name, by_stem) for key in keys if key in index), [])

    @cached_property
    def _by_name_and_stem(self) -> tuple[Mapping[str, list[str]], Mapping[str, list[str]]]:
        images = sorted(self._images)
        names = _group((_folded(image), image) for image in images)
        return names, _group((_folded(os.path.splitext(image)[0]), image) for image in images)


def _list_folder(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


def _relative(path: str, folder: str) -> str | None:
    """``path`` relative to ``folder``, with slashes; None if it is not inside. Both are absolute and normalised."""
    prefix = folder.rstrip(os.sep) + os.sep
    return path[len(prefix) :].replace(os.sep, "/") if path.startswith(prefix) else None


def _group(pairs: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()
