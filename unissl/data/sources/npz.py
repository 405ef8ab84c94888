"""Read one array of an .npz file after a check of its announced size: a small zip file may unpack to terabytes."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unissl.utils.bounded_io import open_file

MAX_BYTES = 4 << 30
"""Size of one array; twice the largest batch of ImageNet at 64 x 64 pixels."""


class DamagedArray(Exception):
    """What is wrong, in a few words."""


def read_array(path: Path, key: str) -> npt.NDArray[Any]:
    """The numbers under ``key``; :class:`DamagedArray` for anything else."""
    try:
        with open_file(path) as whole, zipfile.ZipFile(whole) as archive, archive.open(f"{key}.npy") as file:
            length = archive.getinfo(f"{key}.npy").file_size
            version = np.lib.format.read_magic(file)
            read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            if version not in read_header:
                raise DamagedArray("an array of another version")
            shape, fortran_order, dtype = read_header[version](file)
            announced = math.prod(shape) * dtype.itemsize
            if dtype.kind not in "iuf" or fortran_order or min(shape, default=1) < 0:
                raise DamagedArray("an array that is not of numbers, row by row")
            if announced > min(MAX_BYTES, length):
                raise DamagedArray(f"an array of {announced} bytes in a file of {length}")
            array = np.empty(shape, dtype)
            if _fill(file, array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")) != announced:
                raise DamagedArray("an array that ends too early")
            return array
    except KeyError:
        raise DamagedArray(f"there is no array {key!r}") from None
    except (OSError, EOFError, ValueError, SyntaxError, tokenize.TokenError, TypeError) as error:
        raise DamagedArray(str(error)) from None
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
        raise DamagedArray(str(error)) from None


def _fill(file: Any, target: memoryview) -> int:
    filled = 0
    while filled < len(target) and (block := file.read(min(1 << 20, len(target) - filled))):
        target[filled : filled + len(block)] = block
        filled += len(block)
    return filled
