"""A CSV file that names some of the images of a folder and their labels, written by whatever people have at hand.

Comma, semicolon or tab; with or without a header, a byte-order mark, quotes; lines ended by either system. A file may
be given relative to the folder or to the CSV file, absolute, with backslashes, in other capitals or without its suffix.
What could mean two things is refused: a label on the wrong image is worse than a question. A file with several labels
is used without any and told of, unless a class would lose its last one.
"""

from __future__ import annotations

import csv
import io
import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from unissl.errors import UserError, shortened

FILE_COLUMNS = (
    "file", "file_name", "filename", "file_path", "filepath", "path", "image_path", "image_file", "image_name",
    "image", "img", "img_path", "img_name", "photo", "picture", "image_id", "img_id", "id", "name",
)  # fmt: skip
LABEL_COLUMNS = (
    "label", "labels", "class", "class_name", "classname", "category", "category_name", "target", "class_label",
    "label_name", "species", "tag", "y", "class_id", "category_id", "label_id",
)  # fmt: skip
"""Where a header has several of these, the first in the list counts: ids come last."""
SEPARATORS = ",;\t"
NO_LABEL = ("", "-1")
CONTRADICTED = "has several labels in the label file"
"""How a remark begins that somebody has to act on."""


@dataclass(frozen=True)
class _Line:
    number: int
    cells: list[str]


@dataclass(frozen=True)
class FileLabels:
    """Relative path to label, None where it is left empty or is not the only one; and all labels of the latter."""

    named: dict[str, str | None]
    contradicted: dict[str, tuple[str | None, ...]]

    def remarks(self) -> dict[str, tuple[str, ...]]:
        """What there is to say about contradictions, with the files that it is said of."""
        said = _grouped((_spoken(labels), file) for file, labels in sorted(self.contradicted.items()))
        return {f"{CONTRADICTED} ({labels}); used without a label": tuple(files) for labels, files in said.items()}


def read_label_file(path: Path, root: Path, images: Sequence[str]) -> FileLabels:
    """``images`` are those found below ``root``."""
    lines = _split(path, _text(path))
    finder = _Finder(path, root, images)
    file_column, label_column, has_header = _columns(path, lines, finder)
    given: defaultdict[str, dict[str | None, None]] = defaultdict(dict)
    for line in lines[has_header:]:
        if len(line.cells) <= max(file_column, label_column):
            raise UserError(f"Line {line.number} of {path} has too few columns; give a file and a label.")
        file = finder.find(line.cells[file_column], line.number)
        label = None if line.cells[label_column] in NO_LABEL else line.cells[label_column]
        given[file][label] = None
    named = {file: None if len(labels) > 1 else next(iter(labels)) for file, labels in given.items()}
    several = {file: labels for file, labels in given.items() if len(labels) > 1}
    found = FileLabels(named, {file: tuple(sorted(labels, key=_none_last)) for file, labels in several.items()})
    _require_a_label_of_each_class(path, found)
    return found


def _require_a_label_of_each_class(path: Path, found: FileLabels) -> None:
    kept = set(found.named.values())
    for file, labels in found.contradicted.items():
        lost = next((label for label in labels if label not in kept and label is not None), None)
        if lost is not None:
            raise UserError(
                f"{path} gives {_shown(file)} several labels, {_spoken(labels)}, and no other image is labelled "
                f"{shortened(lost)!r}; keep one of them."
            )


def _none_last(label: str | None) -> tuple[bool, str]:
    return label is None, label or ""


def _spoken(labels: Sequence[str | None]) -> str:
    return " and ".join("none" if label is None else repr(shortened(label)) for label in labels)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text; save it as CSV with UTF-8 encoding.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the file given with --labels.") from None


def _split(path: Path, text: str) -> list[_Line]:
    """The lines by the separator that cuts most of them into as many cells as the first."""

    def regular(lines: list[_Line]) -> int:
        width = len(lines[0].cells) if lines else 0
        return sum(len(line.cells) == width for line in lines) if width > 1 else 0

    tried: list[list[_Line]] = []
    problem = ""
    for separator in SEPARATORS:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        try:
            rows = [_Line(reader.line_num, [cell.strip() for cell in row]) for row in reader]
        except csv.Error as error:
            problem = problem or f"line {reader.line_num}: {error}"
            continue
        tried.append([line for line in rows if any(line.cells)])
    if not tried:
        raise UserError(f"{path} is not a table of cells ({problem}); save it as CSV again.")
    lines = max(tried, key=regular)
    if not lines:
        raise UserError(f"{path} is empty; give a file and a label in each line.")
    return lines


def _columns(path: Path, lines: list[_Line], finder: _Finder) -> tuple[int, int, bool]:
    """Position of the file and of the label column, and whether the first line is a header.

    One known name of two is enough if the other cell is no file; without a header the files tell their column.
    """
    first = [cell.lower().replace(" ", "_").replace("-", "_") for cell in lines[0].cells]
    file = next((first.index(name) for name in FILE_COLUMNS if name in first), None)
    label = next((first.index(name) for name in LABEL_COLUMNS if name in first), None)
    if file is not None and label is not None:
        return file, label, True
    if len(first) == 2:
        holds_file = any(finder.is_there(cell) for cell in lines[0].cells)
        if not holds_file and file is not None:
            return file, 1 - file, True
        if not holds_file and label is not None:
            return 1 - label, label, True
        files = [sum(len(line.cells) > i and finder.is_there(line.cells[i]) for line in lines) for i in (0, 1)]
        return (1, 0, False) if files[1] > files[0] else (0, 1, False)
    raise UserError(
        f"{path} needs a header line with the columns file and label, separated by , ; or tab"
        f" (found: {shortened(', '.join(first))})."
    )


class _Finder:
    """Which image a cell means."""

    def __init__(self, path: Path, root: Path, images: Sequence[str]) -> None:
        self.path, self.root, self.images = path, root, images

    def is_there(self, cell: str) -> bool:
        return any(os.path.isfile(place) for place in self._places(cell)) or bool(self._alike(cell))

    def find(self, cell: str, number: int) -> str:
        where = f"Line {number} of {self.path} names {shortened(cell)!r}"
        outside = False
        for place in self._places(cell):
            if os.path.isfile(place):
                relative = self._below_root(place)
                if relative is not None:
                    return self._as_listed(relative)
                outside = True
        if outside:
            raise UserError(f"{where}, which lies outside {self.root}; move it there.")
        alike = self._alike(cell)
        if len(alike) > 1:
            raise UserError(f"{where}, which may be {alike[0]!r} or {alike[1]!r}; write the one that is meant in full.")
        if not alike:
            raise UserError(f"{where}, and there is no such file in {self.root}; correct that line.")
        return alike[0]

    def _places(self, cell: str) -> Iterable[str]:
        for spelling in dict.fromkeys((cell, cell.replace("\\", "/"))) if cell else ():
            yield os.path.join(self.root, spelling)
            yield os.path.join(self.path.parent, spelling)

    def _below_root(self, place: str) -> str | None:
        """Relative to the root, also if one of the two is given by way of a link."""
        folder, name = os.path.split(os.path.abspath(place))
        for resolve in (os.path.abspath, os.path.realpath):
            try:
                relative = os.path.relpath(os.path.join(resolve(folder), name), resolve(self.root))
            except ValueError:  # on another drive
                continue
            if relative.split(os.sep)[0] != os.pardir:
                return Path(relative).as_posix()
        return None

    def _as_listed(self, relative: str) -> str:
        """The spelling of the listing, where the file system takes several for the same file."""
        if relative in self._listed:
            return relative
        same = (name for name in self._alike(relative) if os.path.samefile(self.root / name, self.root / relative))
        return next(same, relative)

    def _alike(self, cell: str) -> list[str]:
        """Listed images that differ from the cell in capitals, in how accents are composed or by a missing suffix."""
        keys = [_folded(below) for place in self._places(cell) if (below := self._below_root(place)) is not None]
        by_name, by_stem = self._by_name_and_stem
        return next((index[key] for index in (by_name, by_stem) for key in keys if key in index), [])

    @cached_property
    def _listed(self) -> frozenset[str]:
        return frozenset(self.images)

    @cached_property
    def _by_name_and_stem(self) -> tuple[Mapping[str, list[str]], Mapping[str, list[str]]]:
        names = _grouped((_folded(image), image) for image in self.images)
        return names, _grouped((_folded(os.path.splitext(image)[0]), image) for image in self.images)


def _grouped(pairs: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for key, image in pairs:
        groups[key].append(image)
    return groups


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _shown(name: str) -> str:
    return name if name.isprintable() else repr(name)
