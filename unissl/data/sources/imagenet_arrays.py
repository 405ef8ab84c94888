"""The downsampled ImageNet (Chrabaszcz et al., 2017, https://arxiv.org/abs/1707.08819): train_data_batch_1.npz and on,
and val_data.npz.

A batch has ``data``, uint8 (n, 3 * side * side) with all red values, all green, all blue of each image, and ``labels``,
which count from 1. The optional map_clsloc.txt of the same authors has on each line a wnid, its number, and a name.
The same arrays are also published as pickles. These have no published checksum, so they are not read.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unissl.data.sources.checksums import report_partial
from unissl.data.sources.npz import DamagedArray, read_array
from unissl.data.store.decode_to_cache import store_blocks
from unissl.errors import UserError, shortened
from unissl.utils.bounded_io import read_text
from unissl.utils.cache import Entry, cached


def load_arrays(folder: Path, part: str, published: int, size: int) -> Entry:
    """Images and labels of "train" or "val"; ``meta["names"]`` are the published class numbers, as text."""
    batches = _batches(folder, part)

    def build(target: Path) -> dict[str, Any]:
        batch_labels = [_read_labels(path) for path in batches]
        numbers = np.concatenate(batch_labels)
        report_partial("imagenet127", f"images in {part}", len(numbers), published)
        classes, labels = np.unique(numbers, return_inverse=True)
        blocks = (_read_images(path, len(some)) for path, some in zip(batches, batch_labels, strict=True))
        store_blocks(target, blocks, size, labels.astype(np.int64))
        return {"names": [str(number) for number in classes]}

    return cached("imagenet-arrays", batches, {"size": size}, build)


def read_wnids(folder: Path) -> dict[str, str]:
    """Class number -> wnid from map_clsloc.txt; empty without that file."""
    path = folder / "map_clsloc.txt"
    if not path.is_file():
        return {}
    wnids = {}
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({shortened(str(error))}); download it again.") from None
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 2 or not re.fullmatch(r"n\d{8}", fields[0]) or not fields[1].isdecimal():
            raise UserError(
                f"{path} has the line {shortened(line)!r}, which is not a wnid, its number and a name;"
                " download it again."
            )
        wnids[fields[1]] = fields[0]
    return wnids


def _batches(folder: Path, part: str) -> list[Path]:
    if part == "val":
        return [folder / "val_data.npz"]
    pattern = re.compile(r"train_data_batch_(\d+)\.npz")
    numbers = sorted(int(match[1]) for path in folder.iterdir() if (match := pattern.fullmatch(path.name)))
    missing = sorted(set(range(1, max(numbers, default=1) + 1)) - set(numbers))
    if missing:
        raise UserError(f"{folder} lacks train_data_batch_{missing[0]}.npz; download it again.")
    return [folder / f"train_data_batch_{number}.npz" for number in numbers]


def _read_labels(path: Path) -> npt.NDArray[np.int64]:
    labels = _read_array(path, "labels")
    if (
        labels.ndim != 1
        or labels.dtype.kind not in "iu"
        or len(labels) == 0
        or not 0 <= labels.min() <= labels.max() < 2**31
    ):
        raise UserError(f"{path} has labels that are not numbers from 1; download it again.")
    return labels.astype(np.int64)


def _read_images(path: Path, count: int) -> npt.NDArray[np.uint8]:
    """(count, side, side, 3)"""
    data = _read_array(path, "data")
    side = math.isqrt(data.shape[1] // 3) if data.ndim == 2 else 0
    if data.dtype != np.uint8 or side == 0 or 3 * side * side != data.shape[1]:
        raise UserError(
            f"{path} holds {data.dtype} of shape {data.shape}, not square colour images; download it again."
        )
    if len(data) != count:
        raise UserError(f"{path} has {len(data)} images and {count} labels; download it again.")
    return data.reshape(-1, 3, side, side).transpose(0, 2, 3, 1)


def _read_array(path: Path, key: str) -> npt.NDArray[Any]:
    try:
        return read_array(path, key)
    except DamagedArray as error:
        raise UserError(f"{path} cannot be read ({shortened(str(error))}); download it again.") from None
