"""Features of crops of every photo for the teacher of distillation: a zoomed centre crop, and the whole photo.

A small centre crop hides detail and cuts off margins. A teacher that sees all three crops labels the pool better, and
better still through a larger backbone than the student's. The student learns its soft labels from the centre crop
alone, so predictions cost no more. These features are never predictions, so they are computed in bfloat16 where the CPU
is faster in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unissl import __version__
from unissl.augment.views import normalise
from unissl.data.images.decode import Unreadable, decode_stream
from unissl.data.images.resize import CENTER_CROP, CenterCrop, Letterbox, MultiCrop
from unissl.errors import UserError
from unissl.features.backbone import extracts_in_bf16, forward_features, load_backbone, normalisation, weights_hash
from unissl.features.extract import BATCH, pixel_hash, rows_hash
from unissl.features.known_rows import KnownRows, row_digests, write_rows
from unissl.features.scaler import Features
from unissl.nets.bf16 import to_bf16
from unissl.types import ImageTable, Pixels, Rows
from unissl.utils.cache import cached
from unissl.utils.mmap_rows import take_row

ZOOM = 0.6
"""Side of the zoomed crop, as a fraction of that of the centre crop."""
CROPS = MultiCrop((CENTER_CROP, CenterCrop(middle=ZOOM), Letterbox()))
"""The centre crop first: it shows whether a file has changed since it was decoded."""
MAX_DIFFERENCE = 2.0
"""Mean absolute difference of that crop, in levels of 255, up to which a file counts as unchanged."""


def multi_crop_features(
    table: ImageTable,
    name: str,
    device: torch.device,
    bf16: bool | None = None,
    rows: Rows | None = None,
    *,
    centre: bool = False,
) -> tuple[Features, ...]:
    """Features (N, D) of each further crop of N photos, from the cache where possible; none where the table has no
    files. With ``centre``, those of the centre crop come first, from files or not: for a backbone that did not extract
    them before. With ``rows``, in ascending order, only their features are extracted, and all others are zero."""
    further = 0 if table.originals is None else len(CROPS.fits) - 1
    images, num_crops = table.images, centre + further
    if not num_crops:
        return ()
    in_bf16 = extracts_in_bf16(name, device, bf16)
    settings = {
        "pixels": table.content or pixel_hash(images),
        "shape": list(images.shape),
        "weights": weights_hash(name),
        "zoom": ZOOM,
        "bf16": in_bf16,
        "unissl": __version__,
    }
    settings |= {} if rows is None else {"rows": rows_hash(rows)}
    settings |= {"centre": True, "further": further} if centre else {}

    def build(folder: Path) -> dict[str, Any]:
        channels = images.shape[3]
        net = to_bf16(load_backbone(name, channels).to(device), in_bf16)

        @torch.inference_mode()
        def compute(missing: Rows) -> Iterator[list[Features]]:
            strips = decode_crops(table, missing) if further else (take_row(images, row) for row in missing)
            for _ in range(0, len(missing), BATCH):
                strip = torch.from_numpy(np.stack(list(islice(strips, BATCH)))).to(device)
                crops = strip.chunk(1 + further, dim=2)[-num_crops:]  # (n, s, s, channels) each
                inputs = [normalise(crop, *normalisation(channels)) for crop in crops]
                yield [np.stack([forward_features(net, crop, maps=False)[0] for crop in inputs], 1)]

        known = KnownRows("crops", settings, row_digests(images), rows)
        row_bytes = {"features": num_crops * net.feat_dim * 4}
        write_rows(folder, known, row_bytes, compute, BATCH, "features of crops")
        return {"feat_dim": net.feat_dim}

    entry = cached("crops", [], settings, build)
    features: Features = entry.arrays["features"].view(np.float32)
    features = features.reshape(len(images), num_crops, entry.meta["feat_dim"])
    return tuple(features[:, crop] for crop in range(num_crops))


def decode_crops(table: ImageTable, wanted: Rows) -> Iterator[Pixels]:
    """The crops side by side, (s, 3 s, channels), for each of the ``wanted`` rows of a table in turn."""
    assert table.originals is not None
    size, channels = table.images.shape[2:]
    chosen = np.zeros(len(table), dtype=bool)
    chosen[wanted] = True
    originals = ((row, original) for row, original in enumerate(table.originals()) if row < len(table) and chosen[row])
    decoded = 0
    for row, result in decode_stream(originals, size, channels, CROPS):
        name = f"Image {row + 1}" if table.files is None else table.files[row]
        if isinstance(result, Unreadable):
            raise UserError(f"{name} was read before and can no longer be read ({result}); restore it.")
        pixels = result.pixels
        if np.abs(pixels[:, :size].astype(np.int16) - take_row(table.images, row)).mean() > MAX_DIFFERENCE:
            raise UserError(f"{name} has changed since it was first read; start again.")
        decoded += 1
        yield pixels
    if decoded < len(wanted):
        raise UserError(f"{len(wanted) - decoded} of {len(table)} images no longer exist; restore them.")
