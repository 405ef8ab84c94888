"""Features of further crops of every photo, for the teacher of distillation: a zoomed centre crop, and the whole photo.

A small centre crop hides detail and cuts off margins. A teacher that sees all three crops labels the pool better; the
student learns its soft labels from the centre crop alone, so predictions cost no more. These features are never
predictions, so they are computed in bfloat16 where the CPU is faster in it.
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
from unissl.features.backbone import extracts_in_bf16, forward_features, load_backbone, normalisation, weights_hash
from unissl.features.extract import BATCH, pixel_hash
from unissl.features.scaler import Features
from unissl.nets.bf16 import to_bf16
from unissl.types import ImageTable
from unissl.utils.cache import cached
from unissl.utils.partial_rows import PartialRows
from unissl.utils.progress import Progress

ZOOM = 0.6
"""Side of the zoomed crop, as a fraction of that of the centre crop."""
CROPS = MultiCrop((CENTER_CROP, CenterCrop(middle=ZOOM), Letterbox()))
"""The centre crop first: it shows whether a file has changed since it was decoded."""
MAX_DIFFERENCE = 2.0
"""Mean absolute difference of that crop, in levels of 255, up to which a file counts as unchanged."""


def multi_crop_features(
    table: ImageTable, name: str, device: torch.device, bf16: bool | None = None
) -> tuple[Features, ...]:
    """Features (N, D) of each further crop of N photos, from the cache where possible; none where the table has no
    files."""
    if table.originals is None:
        return ()
    images, num_crops = table.images, len(CROPS.fits) - 1
    settings = {
        "pixels": table.content or pixel_hash(images),
        "shape": list(images.shape),
        "weights": weights_hash(name),
        "zoom": ZOOM,
        "bf16": extracts_in_bf16(name, device, bf16),
        "unissl": __version__,
    }

    def compute(folder: Path) -> dict[str, Any]:
        channels = images.shape[3]
        net = to_bf16(load_backbone(name, channels).to(device), bf16)
        with (
            PartialRows(folder, len(images), {"features": num_crops * net.feat_dim * 4}, BATCH) as written,
            Progress("features of further crops", len(images), written.done) as progress,
            torch.inference_mode(),
        ):
            strips = decode_crops(table, written.done)
            for _ in range(written.done, len(images), BATCH):
                crops = split_strips(islice(strips, BATCH), device)
                inputs = [normalise(crop, *normalisation(channels)) for crop in crops]
                written.append([np.stack([forward_features(net, crop, maps=False)[0] for crop in inputs], 1)])
                progress.advance(len(crops[0]))
        return {"feat_dim": net.feat_dim}

    entry = cached("crops", [], settings, compute)
    features: Features = entry.arrays["features"].view(np.float32)
    features = features.reshape(len(images), num_crops, entry.meta["feat_dim"])
    return tuple(features[:, crop] for crop in range(num_crops))


def decode_crops(table: ImageTable, start: int = 0) -> Iterator[npt.NDArray[np.uint8]]:
    """The further crops side by side, (s, 2 s, channels), for each row of a table from ``start`` on in turn."""
    assert table.originals is not None
    size, channels = table.images.shape[2:]
    rows = start
    originals = islice(enumerate(table.originals()), start, None)
    for row, result in decode_stream(originals, size, channels, CROPS):
        name = f"Image {row + 1}" if table.files is None else table.files[row]
        if isinstance(result, Unreadable):
            raise UserError(f"{name} was read before and can no longer be read ({result}); restore it.")
        pixels = result.pixels
        if np.abs(pixels[:, :size].astype(np.int16) - table.images[row]).mean() > MAX_DIFFERENCE:
            raise UserError(f"{name} has changed since it was first read; start again.")
        rows += 1
        yield pixels[:, size:]
    if rows < len(table):
        raise UserError(f"Only {rows} of {len(table)} images still exist; restore the others.")


def split_strips(strips: Iterator[npt.NDArray[np.uint8]], device: torch.device) -> list[Tensor]:
    """Strips of crops, cut into crops (n, s, s, channels)."""
    strip = torch.from_numpy(np.stack(list(strips))).to(device)
    side = strip.shape[1]
    return [strip[:, :, left : left + side] for left in range(0, strip.shape[2], side)]
