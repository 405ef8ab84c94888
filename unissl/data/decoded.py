"""Rows of a cache entry that is being made, and which of them are safely on the disk.

Decoding a million photos takes hours, and machines are taken away in between. Beside the pixels there is one byte per
row that says whether it is there. Pixels are flushed before their bytes are written, so that after a kill or a power
cut a byte is never ahead of its row; rows that lack theirs are decoded again.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from unissl.data.cache import DRAFT
from unissl.data.row_writer import RowWriter

PIXELS = ".pixels.npy"
FLUSH_BYTES = 32 << 20
"""Pixels that may be lost: some ten thousand small images, a second of large ones."""
GREY, COLOUR = 1, 2


class DecodedRows:
    """``kinds`` is 0 for a row that is not there yet or cannot be read, else GREY (all channels equal) or COLOUR."""

    def __init__(self, folder: Path, shape: tuple[int, ...]) -> None:
        self.pixels, self.finished, self._marks = folder / PIXELS, folder / "images.npy", folder / DRAFT
        self.shape = shape
        self.kinds = self._take_up()
        self._file = self._marks.open("r+b" if self.kinds.any() else "w+b")  # marks of rows that are not there go first
        self._file.truncate(shape[0])
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

    def write(self, row: int, pixels: npt.NDArray[np.uint8]) -> None:
        self._writer.write(row, pixels)
        self.kinds[row] = GREY if (pixels == pixels[..., :1]).all() else COLOUR
        self._unmarked.append(row)
        if len(self._unmarked) * pixels.nbytes >= FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Pixels first, then the bytes that vouch for them: those of the whole span, in one write."""
        if not self._unmarked:
            return
        self._writer.flush()
        first, last = min(self._unmarked), max(self._unmarked)
        self._file.seek(first)
        self._file.write(self.kinds[first : last + 1].tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._unmarked = []

    def _take_up(self) -> npt.NDArray[np.uint8]:
        """What an earlier process has left, or nothing."""
        nothing = np.zeros(self.shape[0], dtype=np.uint8)
        if not self.pixels.exists() and self.finished.exists():  # cut off after the last step of all
            os.replace(self.finished, self.pixels)
        try:
            kinds = np.fromfile(self._marks, dtype=np.uint8)
            header, length = RowWriter.header(self.shape), self.pixels.stat().st_size
            with self.pixels.open("rb") as file:
                same = file.read(len(header)) == header
        except OSError:
            return nothing
        there = np.flatnonzero(kinds)
        rows = int(there[-1]) + 1 if len(there) else 0
        whole = len(header) + rows * int(np.prod(self.shape[1:])) <= length
        return kinds if same and whole and len(kinds) == self.shape[0] and kinds.max(initial=0) <= COLOUR else nothing
