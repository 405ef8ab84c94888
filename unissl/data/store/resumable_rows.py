"""Rows of an unfinished cache entry, and which of them are already on disk, so that a killed build can be resumed.

Decoding a million photos takes hours, and processes are killed meanwhile. Next to the pixels there is a mark of two
bytes per row: whether the row is written, in colour or grey, and the issues of its file. Pixels are flushed before the
marks are written, so after a kill or a power cut no mark is ahead of its row; rows without a mark are decoded again.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import numpy as np

from unissl.data.images.decode import DecodedImage
from unissl.data.images.issues import ImageIssue, Marks
from unissl.utils.atomic import open_regular
from unissl.utils.cache import PARTIAL
from unissl.utils.row_writer import RowWriter

PIXELS = ".pixels.npy"
FLUSH_BYTES = 32 << 20
"""Pixels that a kill may lose: some ten thousand small images, a second of large ones. Ctrl-C loses none."""
GREY, COLOUR = 1, 2
KIND_BITS = 2
MARK = np.dtype("<u2")


class ResumableRows:
    """``marks`` is 0 for a row that is not written yet or cannot be read."""

    def __init__(self, folder: Path, shape: tuple[int, ...]) -> None:
        self.pixels, self.finished, self._path = folder / PIXELS, folder / "images.npy", folder / PARTIAL
        self.shape = shape
        self.marks = self._restore()
        # Marks of rows that are not there go first.
        self._file = open_regular(self._path, "r+b" if self.marks.any() else "w+b")
        self._file.truncate(self.marks.nbytes)
        self._writer = RowWriter(self.pixels, shape)
        self._unmarked: list[int] = []

    def __enter__(self) -> ResumableRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if not isinstance(error, OSError):  # a full disk
                self._flush()
        finally:
            self._file.close()
            self._writer.__exit__(kind, error, tb)

    @property
    def kinds(self) -> Marks:
        """0, GREY (all channels equal) or COLOUR, row by row."""
        return _kinds(self.marks)

    @property
    def issues(self) -> Marks:
        """The issue flags of each row."""
        return self.marks >> np.uint16(KIND_BITS)

    def write(self, row: int, image: DecodedImage) -> None:
        pixels = image.pixels
        self._writer.write(row, pixels)
        kind = GREY if (pixels == pixels[..., :1]).all() else COLOUR
        self.marks[row] = kind | image.issues.value << KIND_BITS
        self._unmarked.append(row)
        if len(self._unmarked) * pixels.nbytes >= FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Pixels first, then the marks of all rows between the first and the last of them, in one write."""
        if not self._unmarked:
            return
        self._writer.flush()
        first, last = min(self._unmarked), max(self._unmarked)
        self._file.seek(first * MARK.itemsize)
        self._file.write(self.marks[first : last + 1].tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._unmarked = []

    def _restore(self) -> Marks:
        """The marks of an interrupted build, or zeros."""
        none = np.zeros(self.shape[0], dtype=MARK)
        if not self.pixels.exists() and self.finished.exists():  # killed after the last rename
            os.replace(self.finished, self.pixels)
        try:
            marks, mark_bytes = np.fromfile(self._path, dtype=MARK), self._path.stat().st_size
            header, length = RowWriter.header(self.shape), self.pixels.stat().st_size
            with self.pixels.open("rb") as file:
                same = file.read(len(header)) == header
        except OSError:
            return none
        written = np.flatnonzero(marks)
        rows = int(written[-1]) + 1 if len(written) else 0
        complete = len(header) + rows * int(np.prod(self.shape[1:])) <= length
        valid = np.isin(_kinds(marks[written]), (GREY, COLOUR)).all()
        valid &= (marks >> KIND_BITS).max(initial=0) < 1 << len(ImageIssue)
        return marks if same and complete and mark_bytes == none.nbytes and valid else none


def _kinds(marks: Marks) -> Marks:
    return marks & np.uint16((1 << KIND_BITS) - 1)
