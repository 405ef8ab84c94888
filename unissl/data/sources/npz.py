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
ZIP_ERRORS = (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError)
HEADER_ERRORS = (ValueError, SyntaxError, tokenize.TokenError, TypeError)


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
            shape, _, dtype = read_header[version](file)
            announced = math.prod(shape) * dtype.itemsize
            if dtype.kind not in "iuf" or min(shape, default=1) < 0:
                raise DamagedArray("an array that is not of numbers")
            if announced > min(MAX_BYTES, length):
                raise DamagedArray(f"an array of {announced} bytes in a file of {length}")
            file.seek(0)
            return np.lib.format.read_array(file, allow_pickle=False)
    except KeyError:
        raise DamagedArray(f"there is no array {key!r}") from None
    except (*ZIP_ERRORS, *HEADER_ERRORS) as error:
        raise DamagedArray(str(error)) from None
