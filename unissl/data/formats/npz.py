"""One array of an .npz file, after a look at how large it says it is: a small zip file may unpack to terabytes."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_BYTES = 4 << 30
"""Of one array; twice the longest batch of ImageNet at 64 x 64 pixels."""


class Damaged(Exception):
    """What is wrong, in a few words."""


def read_array(path: Path, key: str) -> npt.NDArray[Any]:
    """The numbers under ``key``; :class:`Damaged` for anything else."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as file:
            length = archive.getinfo(f"{key}.npy").file_size
            version = np.lib.format.read_magic(file)
            read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            if version not in read_header:
                raise Damaged("an array of another version")
            shape, by_columns, dtype = read_header[version](file)
            announced = math.prod(shape) * dtype.itemsize
            if dtype.kind not in "iuf" or by_columns or min(shape, default=1) < 0:
                raise Damaged("an array that is not of numbers, row by row")
            if announced > min(MOST_BYTES, length):
                raise Damaged(f"an array of {announced} bytes in a file of {length}")
            made = np.empty(shape, dtype)
            if _fill(file, made.reshape(-1).view(np.uint8).data if made.size else memoryview(b"")) != announced:
                raise Damaged("an array that ends too early")
            return made
    except KeyError:
        raise Damaged(f"there is no array {key!r}") from None
    except (OSError, EOFError, ValueError, SyntaxError, tokenize.TokenError, TypeError) as error:
        raise Damaged(str(error)) from None
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
        raise Damaged(str(error)) from None


def _fill(file: Any, target: memoryview) -> int:
    done = 0
    while done < len(target) and (block := file.read(min(1 << 20, len(target) - done))):
        target[done : done + len(block)] = block
        done += len(block)
    return done
