"""A label file: a CSV file with the label of some images of a folder.

The separator is a comma, semicolon or tab; header, byte-order mark, quotes and either line ending are optional. A file
may be given relative to the image folder or to the CSV file, absolute, with backslashes, in another case or without its
suffix. An apostrophe before a formula is removed (:mod:`unissl.utils.csv_cells`). Ambiguous lines are errors, among
them the label ``nan``: a label on the wrong image is worse than a question. A file with conflicting labels is used as
unlabelled and reported, unless a class would lose its last label.
"""

from __future__ import annotations

import csv
import io
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Never

from unissl.errors import UserError, shortened
from unissl.types import MISSING_WORDS
from unissl.utils.bounded_io import open_file
from unissl.utils.csv_cells import from_cell

if TYPE_CHECKING:
    import _csv

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
NO_NAME = frozenset(("", ".", ".."))
"""Ends of a path that name no file."""
SUFFIX = re.compile(r"(?<=[^/\0])\.[^./\0]*(?=\0|\Z)")
"""Suffixes of names that are separated by NUL."""
MAX_SAMPLED = 1000
"""Lines without a header that decide which column has the files."""
MAX_NAMED_LABELS = 5
"""Conflicting labels of a file that a message names."""
CONFLICTING_LABELS = "has several labels in the label file"
"""Start of the image issue for files with conflicting labels."""

Row = tuple[str, ...]
"""The cells of a line; tuples of strings cost the garbage collector nothing, however many there are."""
SPACE_AT_EDGE = re.compile(r"\s\0|\0\s")
"""In cells that are separated by NUL."""


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
    """The labels in the CSV file ``path``; ``images`` are the relative paths of all images below ``root``.

    Whole columns are handled at once: a million lines take a few seconds.
    """
    table = _read_table(path)
    matcher = _FileMatcher(path, root, images)
    file_column, label_column, has_header = _find_columns(path, table, matcher)
    group_column = None
    if has_header:
        group_column = next((i for i, cell in enumerate(table.rows[0]) if cell.lower() == GROUP_COLUMN), None)
        table = replace(table, rows=table.rows[1:], header_rows=1)
    min_cells = max(file_column, label_column, -1 if group_column is None else group_column) + 1
    short = next((i for i, row in enumerate(table.rows) if len(row) < min_cells), None)
    if short is not None:
        raise UserError(f"Line {table.line(short)} of {path} has too few columns; give a file and a label.")
    files = matcher.match_all(table, file_column)
    groups = None if group_column is None else _read_groups(path, table, files, group_column)
    cells = table.column(label_column)
    name_of = {cell: None if cell in NO_LABEL else from_cell(cell) for cell in set(cells)}
    names = [name_of[cell] for cell in cells]
    _check_missing_words(path, table, "label", names)
    labels, conflicts = _merge_labels(files, names)
    file_labels = FileLabels(labels, conflicts, groups)
    _require_a_label_of_each_class(path, file_labels)
    return file_labels


def _merge_labels(
    files: Sequence[str], names: Sequence[str | None]
) -> tuple[dict[str, str | None], dict[str, tuple[str | None, ...]]]:
    """The label of each file, and all labels of files that have several."""
    labels = dict(zip(files, names, strict=True))
    if len(labels) == len(files):
        return labels, {}
    every_label: defaultdict[str, set[str | None]] = defaultdict(set)
    for file, name in zip(files, names, strict=True):
        every_label[file].add(name)
    conflicts = {file: tuple(sorted(s, key=_none_last)) for file, s in every_label.items() if len(s) > 1}
    return labels | dict.fromkeys(conflicts), conflicts


def _read_groups(path: Path, table: _Table, files: Sequence[str], column: int) -> dict[str, str]:
    """File -> group; a file without one is left out."""
    groups: dict[str, str] = {}
    names = [from_cell(cell) if cell else None for cell in table.column(column)]
    _check_missing_words(path, table, "group", names)
    for i, (file, group) in enumerate(zip(files, names, strict=True)):
        if group is not None and groups.setdefault(file, group) != group:
            raise UserError(
                f"Line {table.line(i)} of {path} puts {shortened(file)!r} into the group {shortened(group)!r}, and"
                f" another line into {shortened(groups[file])!r}; keep one group per file."
            )
    return groups


def _check_missing_words(path: Path, table: _Table, what: str, names: Sequence[str | None]) -> None:
    """Refuse ``nan`` and the like: as a class they would train a wrong one, as a missing label they would lose one."""
    found = MISSING_WORDS.intersection(name for name in set(names) if name is not None)
    if found:
        i, name = next((i, name) for i, name in enumerate(names) if name in found)
        raise UserError(
            f"Line {table.line(i)} of {path} gives the {what} {name!r}, which programs write for a missing value; leave"
            f" the cell empty if the image has no {what}, otherwise rename the {'class' if what == 'label' else what}."
        )


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
    shown = ["none" if label is None else repr(shortened(label)) for label in labels[:MAX_NAMED_LABELS]]
    return " and ".join(shown + ([f"{len(labels) - len(shown)} more"] if len(labels) > len(shown) else []))


@dataclass(frozen=True)
class _Table:
    """Lines that are not blank, as stripped cells. The number of a line is found when a message needs it."""

    rows: list[Row]
    text: str
    separator: str
    header_rows: int = 0

    def column(self, index: int) -> list[str]:
        return [row[index] for row in self.rows]

    def line(self, row: int) -> int:
        """The number of the line that ``rows[row]`` ends in."""
        reader = _parse(self.text, self.separator)
        numbers = (reader.line_num for cells in reader if any(cell.strip() for cell in cells))
        return next(number for i, number in enumerate(numbers) if i == row + self.header_rows)


def _parse(text: str, separator: str) -> _csv.Reader:
    return csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)


def _read_table(path: Path) -> _Table:
    """The table by the separator that gives most lines as many cells as the first has."""
    text = _read_text(path)
    parsed: list[_Table] = []
    problem = ""
    for separator in [separator for separator in SEPARATORS if separator in text] or [SEPARATORS[0]]:
        reader = _parse(text, separator)
        try:
            rows: list[Row] = list(map(tuple, reader))
        except csv.Error as error:
            problem = problem or f"line {reader.line_num}: {error}"
            continue
        if SPACE_AT_EDGE.search("\0".join(("", *chain.from_iterable(rows), ""))):
            rows = [tuple([cell.strip() for cell in row]) for row in rows]
        parsed.append(_Table([row for row in rows if any(row)], text, separator))
    if not parsed:
        raise UserError(f"{path} is not a table of cells ({problem}); save it as CSV again.")
    table = max(parsed, key=lambda table: _count_regular(table.rows))
    if not table.rows:
        raise UserError(f"{path} is empty; give a file and a label in each line.")
    return table


def _count_regular(rows: list[Row]) -> int:
    """The number of lines with as many cells as the first; 0 for a single column."""
    width = len(rows[0]) if rows else 0
    return list(map(len, rows)).count(width) if width > 1 else 0


def _read_text(path: Path) -> str:
    try:
        with open_file(path) as file:
            return file.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text; save it as CSV with UTF-8 encoding.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the file given with --labels.") from None


def _find_columns(path: Path, table: _Table, matcher: _FileMatcher) -> tuple[int, int, bool]:
    """Index of the file column and of the label column, and whether the first line is a header.

    One known name of two is enough if the other cell is no file. Without a header, the column with more file names is
    the file column.
    """
    cells = table.rows[0]
    header = [cell.lower().replace(" ", "_").replace("-", "_") for cell in cells]
    file = next((header.index(name) for name in FILE_COLUMNS if name in header), None)
    label = next((header.index(name) for name in LABEL_COLUMNS if name in header), None)
    if len(header) == 2 and (file is None or label is None):
        if (file is None and label is None) or any(matcher.is_file(from_cell(cell)) for cell in cells):
            sample = table.rows[:MAX_SAMPLED]
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
    """A folder that a cell may mean: its absolute path, and its path below the image folder with a slash at the end,
    ``below`` by name and ``real`` also by way of symbolic links; None if it is not inside."""

    def __init__(self, path: str, below: str | None, real: str | None) -> None:
        self.path, self.below, self.real = path, below, real
        self.key = None if real is None else _folded(real)

    def has_file(self, name: str) -> bool:
        return name in self.entries and os.path.isfile(os.path.join(self.path, name))

    @cached_property
    def entries(self) -> frozenset[str]:
        try:
            return frozenset(os.listdir(self.path))
        except OSError:
            return frozenset()


Spelling = tuple[tuple[_Folder, ...], str]
"""Folders that a cell may mean, and the name of a file in one of them."""


class _FileMatcher:
    """Finds the image that a cell names. Folders are resolved once each, so that most cells cost a few lookups."""

    def __init__(self, path: Path, root: Path, images: Iterable[str]) -> None:
        self.path, self.root = path, root
        self._listed = tuple(images)
        self._images = frozenset(self._listed)
        self._abs_root, self._real_root = os.path.abspath(root), os.path.realpath(root)
        self._bases = tuple(dict.fromkeys((self._abs_root, os.path.abspath(path.parent))))
        self._folder, self._folders = cache(self._make_folder), cache(self._resolve)

    def is_exact(self, cell: str) -> bool:
        """Whether a cell names a file, listed or not, in its exact spelling."""
        return cell in self._images or self._is_on_disk(self._spellings(cell))

    def is_file(self, cell: str) -> bool:
        """Whether a cell names a file, listed or not, in any spelling."""
        return self.is_exact(cell) or bool(self._similar(self._spellings(cell)))

    def match_all(self, table: _Table, column: int) -> list[str]:
        """The relative paths of the images that a column names."""
        images, files = self._images, []
        for i, cell in enumerate(table.column(column)):
            name = from_cell(cell) if cell[:1] == "'" else cell
            file = name if name in images else self._match(name)
            if file is None:
                self._reject(name, table.line(i))
            files.append(file)
        return files

    def _match(self, cell: str) -> str | None:
        """The relative path of the one image that ``cell`` names, and that is not spelt as listed; None otherwise."""
        outside, spellings = False, self._spellings(cell)
        for folders, name in spellings:
            for folder in folders:
                below = folder.below
                if below is not None and (file := below + name) != cell and file in self._images:
                    return file
                if name in folder.entries and folder.has_file(name):
                    if folder.real is not None:
                        return self._as_listed(folder.real + name)
                    outside = True
        similar = () if outside else self._similar(spellings)
        return similar[0] if len(similar) == 1 else None

    def _reject(self, cell: str, number: int) -> Never:
        """The error for a cell that names no image, or several."""
        spellings = self._spellings(cell)
        line = f"Line {number} of {self.path} names {shortened(cell)!r}"
        if self._is_on_disk(spellings):
            raise UserError(f"{line}, which is outside {self.root}; move it there.")
        if similar := self._similar(spellings):
            one, other = (shortened(name) for name in similar[:2])
            raise UserError(f"{line}, which may be {one!r} or {other!r}; write the path in full.")
        raise UserError(f"{line}, and there is no such file in {self.root}; correct that line.")

    def _spellings(self, cell: str) -> list[Spelling]:
        """What a cell may mean: a file relative to the image folder, or to the CSV file."""
        if not cell or "\0" in cell:
            return []
        spellings = []
        for spelling in (cell, cell.replace("\\", "/")) if "\\" in cell else (cell,):
            parent, slash, name = spelling.rpartition("/")
            if name in NO_NAME:
                parent, slash, name = os.path.normpath(spelling).rpartition("/")
            spellings.append((self._folders(parent + slash), name))
        return spellings

    def _is_on_disk(self, spellings: Iterable[Spelling]) -> bool:
        return any(folder.has_file(name) for folders, name in spellings for folder in folders)

    def _resolve(self, parent: str) -> tuple[_Folder, ...]:
        return tuple(self._folder(os.path.normpath(os.path.join(base, parent))) for base in self._bases)

    def _make_folder(self, path: str) -> _Folder:
        below = _below(path, self._abs_root)
        real = _below(os.path.realpath(path), self._real_root) if below is None else below
        return _Folder(path, below, real)

    def _as_listed(self, relative: str) -> str:
        """The listed spelling, where the file system takes several for the same file."""
        if relative in self._images:
            return relative
        similar = self._similar(self._spellings(relative))
        return next((name for name in similar if os.path.samefile(self.root / name, self.root / relative)), relative)

    def _similar(self, spellings: Iterable[Spelling]) -> Sequence[str]:
        """Listed images that differ from a cell in case, in how accents are composed or by a missing suffix."""
        keys, has_dot = [], False
        for folders, name in spellings:
            has_dot = has_dot or "." in name
            folded = _folded(name)
            for folder in folders:
                if folder.key is not None:
                    keys.append(folder.key + folded)
        if has_dot:  # a name without a dot is its own stem
            for key in keys:
                if found := self._by_name.get(key):
                    return found
        for key in keys:
            if found := self._by_stem.get(key):
                same_name = [image for image in found if _folded(image) == key] if len(found) > 1 else []
                return same_name or found
        return ()

    @cached_property
    def _folded_names(self) -> tuple[str, tuple[str, ...]]:
        """All images, sorted, and their folded names, separated by NUL."""
        images = tuple(sorted(self._listed))  # a set would lose the order in which they mostly are
        return _folded("\0".join(images)), images

    @cached_property
    def _by_name(self) -> Mapping[str, Sequence[str]]:
        names, images = self._folded_names
        return _index(names.split("\0"), images)

    @cached_property
    def _by_stem(self) -> Mapping[str, Sequence[str]]:
        names, images = self._folded_names
        return _index(SUFFIX.sub("", names).split("\0"), images)


def _index(keys: Sequence[str], images: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Key -> the images with it."""
    if not images:  # an empty text was split into one key
        return {}
    index = {key: (image,) for key, image in zip(keys, images, strict=True)}
    return index if len(index) == len(images) else _group(zip(keys, images, strict=True))


def _below(path: str, folder: str) -> str | None:
    """``path`` relative to ``folder``, with slashes and one at the end; None if it is not inside. Both are absolute and
    normalised."""
    prefix = folder.rstrip(os.sep) + os.sep
    inside = path.rstrip(os.sep) + os.sep
    return inside[len(prefix) :].replace(os.sep, "/") if inside.startswith(prefix) else None


def _group(pairs: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


def _folded(name: str) -> str:
    return name.lower() if name.isascii() else unicodedata.normalize("NFC", name).casefold()
