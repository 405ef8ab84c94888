"""Write rows of an .npy file."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from unissl.utils.atomic import open_regular


class RowWriter:
    """An .npy file of uint8 filled row by row, in any order, by plain writes.

    Not a writable memory map: on a full disk a plain write raises, while a memory map kills the process.
    """

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        header = self.header(shape)
        self._file = open_regular(path, "r+b" if path.exists() else "wb")  # existing rows are kept
        self._file.write(header)
        self._start = len(header)
        self._stride = int(np.prod(shape[1:]))
        self._end = self._start + shape[0] * self._stride

    def write(self, row: int, block: npt.NDArray[np.uint8]) -> None:
        """Put one row (or several adjacent ones) at position ``row``."""
        self._file.seek(self._start + row * self._stride)
        self._file.write(np.ascontiguousarray(block).data)

    def flush(self) -> None:
        """Flush all writes to disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    @staticmethod
    def header(shape: tuple[int, ...]) -> bytes:
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": shape})
        return buffer.getvalue()

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *error: object) -> None:
        with self._file:
            self._file.truncate(self._end)
