"""More pictures of every photo, for the last part of a run: a zoom into its middle, and all of it.

A middle square at a small size hides detail and cuts off margins. A teacher that sees these as well knows more about
the pool; what it knows is taught to a network that sees the middle square alone, so that predictions cost no more.

None of these vectors is an answer to anybody, so they are made in bfloat16 where the CPU is faster in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unissl import __version__
from unissl.augment.views import normalise
from unissl.data.images.decode import Unreadable, decode_stream
from unissl.data.images.resize import CENTER_CROP, CenterCrop, Letterbox, MultiCrop
from unissl.errors import UserError
from unissl.features.extract import (
    BATCH,
    Features,
    extracts_in_bf16,
    forward_features,
    load_backbone,
    normalisation,
    pixel_hash,
    weights_hash,
    write_rows,
)
from unissl.nets.bf16 import to_bf16
from unissl.types import ImageTable
from unissl.utils.cache import cached
from unissl.utils.progress import Progress
from unissl.utils.row_writer import RowWriter

ZOOM = 0.6
"""Side of the zoom, of that of the middle square."""
CROPS = MultiCrop((CENTER_CROP, CenterCrop(middle=ZOOM), Letterbox()))
"""The middle square first, as it was read before: by that it is known that a file has not changed."""
SAME = 2.0
"""Levels, of 255, by which that square may differ on average."""


def multi_crop_features(table: ImageTable, name: str, device: torch.device) -> tuple[Features, ...]:
    """Vectors (N, D) that a backbone makes of each picture of N photos, from the cache if they are there; none where
    nobody has the files any more."""
    if table.originals is None:
        return ()
    images, number = table.images, len(CROPS.fits) - 1
    settings = {
        "pixels": pixel_hash(images),
        "shape": list(images.shape),
        "weights": weights_hash(name),
        "zoom": ZOOM,
        "half": extracts_in_bf16(name, device),
        "unissl": __version__,
    }

    def make(folder: Path) -> dict[str, Any]:
        net = to_bf16(load_backbone(name, images.shape[3]).to(device))
        strips = decoded(table)
        with (
            RowWriter(folder / "vectors.npy", (len(images), number * net.feat_dim * 4)) as writer,
            Progress("features of more pictures", len(images)) as progress,
            torch.inference_mode(),
        ):
            for start in range(0, len(images), BATCH):
                squares = as_squares(islice(strips, BATCH), device)
                shown = [normalise(square, *normalisation(images.shape[3])) for square in squares]
                write_rows(writer, start, [forward_features(net, square, maps=False)[0] for square in shown])
                progress.advance(len(squares[0]))
        return {"length": net.feat_dim}

    entry = cached("pictures", [], settings, make)
    made: Features = entry.arrays["vectors"].view(np.float32).reshape(len(images), number, entry.meta["length"])
    return tuple(made[:, place] for place in range(number))


def decoded(table: ImageTable) -> Iterator[npt.NDArray[np.uint8]]:
    """The pictures side by side, (s, 2 s, channels), for each row of a table in turn."""
    assert table.originals is not None
    size, channels = table.images.shape[2:]
    rows = 0
    for row, result in decode_stream(enumerate(table.originals()), size, channels, CROPS):
        name = f"Image {row + 1}" if table.files is None else table.files[row]
        if isinstance(result, Unreadable):
            raise UserError(f"{name} could be read before and cannot be read any more ({result}); put it back.")
        pixels = result.pixels
        if np.abs(pixels[:, :size].astype(np.int16) - table.images[row]).mean() > SAME:
            raise UserError(f"{name} has changed since it was first read; start again.")
        rows += 1
        yield pixels[:, size:]
    if rows < len(table):
        raise UserError(f"Of {len(table)} images only {rows} are still there; put the others back.")


def as_squares(strips: Iterator[npt.NDArray[np.uint8]], device: torch.device) -> list[Tensor]:
    """Strips cut into squares (n, s, s, channels)."""
    strip = torch.from_numpy(np.stack(list(strips))).to(device)
    side = strip.shape[1]
    return [strip[:, :, left : left + side] for left in range(0, strip.shape[2], side)]
