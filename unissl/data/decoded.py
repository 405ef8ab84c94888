"""Rows of a cache entry that is being made, and which of them are safely on the disk.

Decoding a million photos takes hours, and machines are taken away in between. Beside the pixels there is one number of
two bytes per row that says whether it is there, in colour or grey, and what was odd about its file. Pixels are flushed
before their marks are written, so that after a kill or a power cut a mark is never ahead of its row; rows that lack
theirs are decoded again.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import numpy as np

from unissl.data.cache import DRAFT
from unissl.data.decode import Picture
from unissl.data.oddities import Marks, Oddity
from unissl.data.row_writer import RowWriter
from unissl.record import open_own

PIXELS = ".pixels.npy"
FLUSH_BYTES = 32 << 20
"""Pixels that may be lost: some ten thousand small images, a second of large ones."""
GREY, COLOUR = 1, 2
KIND_BITS = 2
MARK = np.dtype("<u2")


class DecodedRows:
    """``marks`` is 0 for a row that is not there yet or cannot be read."""

    def __init__(self, folder: Path, shape: tuple[int, ...]) -> None:
        self.pixels, self.finished, self._path = folder / PIXELS, folder / "images.npy", folder / DRAFT
        self.shape = shape
        self.marks = self._take_up()
        # Marks of rows that are not there go first.
        self._file = open_own(self._path, "r+b" if self.marks.any() else "w+b")
        self._file.truncate(self.marks.nbytes)
        self._writer = RowWriter(self.pixels, shape)
        self._unmarked: list[int] = []

    def __enter__(self) -> DecodedRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._file.close()
            self._writer.__exit__(kind, error, tb)

    @property
    def kinds(self) -> Marks:
        """0, GREY (all channels equal) or COLOUR, row by row."""
        return _kinds(self.marks)

    @property
    def oddities(self) -> Marks:
        return self.marks >> np.uint16(KIND_BITS)

    def write(self, row: int, picture: Picture) -> None:
        pixels = picture.pixels
        self._writer.write(row, pixels)
        kind = GREY if (pixels == pixels[..., :1]).all() else COLOUR
        self.marks[row] = kind | picture.oddities.value << KIND_BITS
        self._unmarked.append(row)
        if len(self._unmarked) * pixels.nbytes >= FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Pixels first, then the marks that vouch for them: those of the whole span, in one write."""
        if not self._unmarked:
            return
        self._writer.flush()
        first, last = min(self._unmarked), max(self._unmarked)
        self._file.seek(first * MARK.itemsize)
        self._file.write(self.marks[first : last + 1].tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._unmarked = []

    def _take_up(self) -> Marks:
        """What an earlier process has left, or nothing."""
        nothing = np.zeros(self.shape[0], dtype=MARK)
        if not self.pixels.exists() and self.finished.exists():  # cut off after the last step of all
            os.replace(self.finished, self.pixels)
        try:
            marks, marked = np.fromfile(self._path, dtype=MARK), self._path.stat().st_size
            header, length = RowWriter.header(self.shape), self.pixels.stat().st_size
            with self.pixels.open("rb") as file:
                same = file.read(len(header)) == header
        except OSError:
            return nothing
        there = np.flatnonzero(marks)
        rows = int(there[-1]) + 1 if len(there) else 0
        whole = len(header) + rows * int(np.prod(self.shape[1:])) <= length
        return marks if same and whole and marked == nothing.nbytes and _are_possible(marks[there]) else nothing


def _kinds(marks: Marks) -> Marks:
    return marks & np.uint16((1 << KIND_BITS) - 1)


def _are_possible(marks: Marks) -> bool:
    """Whether these can be marks of rows that are there."""
    return bool(np.isin(_kinds(marks), (GREY, COLOUR)).all() and (marks >> KIND_BITS).max(initial=0) < 1 << len(Oddity))
