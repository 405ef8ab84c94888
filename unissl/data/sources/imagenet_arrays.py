"""The downsampled ImageNet (Chrabaszcz et al., 2017, https://arxiv.org/abs/1707.08819): train_data_batch_1 and on, and
val_data, as .npz files or as pickled dictionaries.

A batch has ``data``, uint8 (n, 3 * side * side) with all red values, all green, all blue of each image, and ``labels``,
which count from 1. map_clsloc.txt, from the same makers, has on each line a wnid, its number, and a name.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unissl.data.formats.batch_pickle import read_batch
from unissl.data.formats.npz import Damaged, read_array
from unissl.data.sources.checksums import announce_part
from unissl.data.store.decode_to_cache import store_blocks
from unissl.errors import UserError, shortened
from unissl.utils.bounded_io import read_text
from unissl.utils.cache import Entry, cached


def array_part(folder: Path, part: str, published: int, size: int) -> Entry:
    """Images and labels of "train" or "val"; ``meta["names"]`` are the numbers that the labels stand for, as text."""
    batches = _batches(folder, part)

    def build(target: Path) -> dict[str, Any]:
        labels_of = [_labels(path) for path in batches]
        numbers = np.concatenate(labels_of)
        announce_part("imagenet127", f"images in {part}", len(numbers), published)
        found, labels = np.unique(numbers, return_inverse=True)
        images = (_images(path, len(some)) for path, some in zip(batches, labels_of, strict=True))
        store_blocks(target, images, size, labels.astype(np.int64))
        return {"names": [str(number) for number in found]}

    return cached("imagenet-arrays", batches, {"size": size}, build)


def read_wnids(folder: Path) -> dict[str, str]:
    """Number -> wnid, where the file that says so is there."""
    path = folder / "map_clsloc.txt"
    if not path.is_file():
        return {}
    wnids = {}
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({shortened(str(error))}); get it anew.") from None
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 2 or not re.fullmatch(r"n\d{8}", fields[0]) or not fields[1].isdecimal():
            raise UserError(
                f"{path} has the line {shortened(line)!r}; each must be a wnid, its number and a name; get it anew."
            )
        wnids[fields[1]] = fields[0]
    return wnids


def _batches(folder: Path, part: str) -> list[Path]:
    suffix = ".npz" if all((folder / f"{name}.npz").is_file() for name in ("train_data_batch_1", "val_data")) else ""
    if part == "val":
        return [folder / f"val_data{suffix}"]
    pattern = re.compile(rf"train_data_batch_(\d+){re.escape(suffix)}")
    numbers = sorted(int(match[1]) for path in folder.iterdir() if (match := pattern.fullmatch(path.name)))
    missing = sorted(set(range(1, max(numbers, default=1) + 1)) - set(numbers))
    if missing:
        raise UserError(f"{folder} lacks train_data_batch_{missing[0]}{suffix}; get it, or all of them, anew.")
    return [folder / f"train_data_batch_{number}{suffix}" for number in numbers]


def _labels(path: Path) -> npt.NDArray[np.int64]:
    labels = _field(path, "labels")
    if (
        labels.ndim != 1
        or labels.dtype.kind not in "iu"
        or len(labels) == 0
        or not 0 <= labels.min() <= labels.max() < 2**31
    ):
        raise UserError(f"{path} has labels that are not numbers from 1; get the file anew.")
    return labels.astype(np.int64)


def _images(path: Path, count: int) -> npt.NDArray[np.uint8]:
    """(count, side, side, 3)"""
    data = _field(path, "data")
    side = math.isqrt(data.shape[1] // 3) if data.ndim == 2 else 0
    if data.dtype != np.uint8 or side == 0 or 3 * side * side != data.shape[1]:
        raise UserError(f"{path} holds {data.dtype} of shape {data.shape}, no square colour images; get the file anew.")
    if len(data) != count:
        raise UserError(f"{path} has {len(data)} images and {count} labels; get the file anew.")
    return data.reshape(-1, 3, side, side).transpose(0, 2, 3, 1)


def _field(path: Path, key: str) -> npt.NDArray[Any]:
    if path.suffix == ".npz":
        try:
            return read_array(path, key)
        except Damaged as error:
            raise UserError(f"{path} cannot be read ({shortened(str(error))}); get the file anew.") from None
    with path.open("rb") as file:
        batch = read_batch(file, str(path))
    if not isinstance(batch, dict) or not {key, key.encode()} & batch.keys():
        raise UserError(f"{path} has no field {key!r}, so it is no official batch; get the file anew.")
    found = batch[key] if key in batch else batch[key.encode()]
    if isinstance(found, list) and all(type(number) is int and 0 <= number < 2**31 for number in found):
        return np.array(found, dtype=np.int64)
    if not isinstance(found, np.ndarray):
        raise UserError(f"{path} has {key!r} that are no numbers; get the file anew.")
    return found
