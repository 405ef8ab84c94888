"""Rows of a cache entry that are computed in order, and how many of them are on disk, so that a stopped build resumes.

The number of rows is written after the rows themselves are flushed, so that it is never ahead of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from unissl.utils.atomic import open_regular
from unissl.utils.cache import PARTIAL
from unissl.utils.row_writer import RowWriter

FLUSH_BYTES = 32 << 20
"""Rows that a kill may lose, in bytes. Ctrl-C and the signals of a scheduler lose none."""


class PartialRows:
    """The files ``NAME.npy`` of a cache entry, uint8 (``total``, ``row_bytes[NAME]``), filled from row ``done`` on.

    Rows count in multiples of ``batch``: how many are computed together may change the last bits.
    """

    def __init__(self, folder: Path, total: int, row_bytes: Mapping[str, int], batch: int) -> None:
        files = {folder / f"{name}.npy": (total, size) for name, size in row_bytes.items()}
        self._mark = folder / PARTIAL
        self.done = _rows_on_disk(self._mark, files, batch)
        self._writers = [RowWriter(path, shape) for path, shape in files.items()]
        self._unflushed = 0

    def __enter__(self) -> PartialRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if not isinstance(error, OSError):  # a full disk
                self._flush()
        finally:
            for writer in self._writers:
                writer.__exit__(kind, error, tb)

    def append(self, blocks: Sequence[npt.NDArray[Any]]) -> None:
        """Write the next rows: a block (n, ...) of any type for each file."""
        rows = [block.reshape(len(block), -1).view(np.uint8) for block in blocks]
        for writer, block in zip(self._writers, rows, strict=True):
            writer.write(self.done, block)
        self.done += len(rows[0])
        self._unflushed += sum(block.nbytes for block in rows)
        if self._unflushed >= FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        for writer in self._writers:
            writer.flush()
        with open_regular(self._mark, "wb") as file:
            file.write(str(self.done).encode())
            file.flush()
            os.fsync(file.fileno())
        self._unflushed = 0


def _rows_on_disk(mark: Path, files: Mapping[Path, tuple[int, int]], batch: int) -> int:
    """Rows that an interrupted build has flushed; 0 if its files are not those of this one."""
    try:
        done = int(mark.read_bytes())
        for path, shape in files.items():
            header = RowWriter.header(shape)
            with path.open("rb") as file:
                same = file.read(len(header)) == header
            if not same or path.stat().st_size < len(header) + done * shape[1]:
                return 0
    except (OSError, ValueError):
        return 0
    total = next(iter(files.values()))[0]
    return done if 0 <= done <= total and (done % batch == 0 or done == total) else 0
