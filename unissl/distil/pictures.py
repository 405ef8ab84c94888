"""More pictures of every photo, for the last part of a run: its mirror image, a zoom into its middle, all of it.

A middle square at a small size hides detail and cuts off margins. Teachers that see these as well know more about the
pool; what they know is taught to a network that sees the middle square alone, so that predictions cost no more. The
network in question also learns from mirror images, where a mirror image is still one of its class.

None of these vectors is an answer to anybody, so they are made in bfloat16 where the CPU is faster in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unissl import __version__
from unissl.augment import AugmentConfig
from unissl.augment.image_views import ImageViews
from unissl.augment.views import normalise
from unissl.data.cache import cached
from unissl.data.decode import Unreadable, decode_stream
from unissl.data.fit import Fit, SideBySide, Whole
from unissl.data.progress import Progress
from unissl.data.row_writer import RowWriter
from unissl.errors import UserError
from unissl.features import (
    BATCH,
    LAST_STAGES,
    Maps,
    Vectors,
    backbone,
    identity,
    inner_shape,
    look,
    normalisation,
    pixel_hash,
    write_rows,
)
from unissl.nets import Network
from unissl.nets.half import cpu_computes_in_half, in_half
from unissl.types import ImageTable

ZOOM = 0.6
"""Side of the zoom, of that of the middle square."""
SMALLER = 0.8
"""Side of these two pictures in pixels, of that of the images."""
STEP = 16
FROM_FILES = SideBySide((Fit(middle=ZOOM), Whole()))

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pictures:
    """Vectors (N, D) of N photos in the pictures that there are, and maps (N, 1, h, w, c) of their mirror images that
    enter the last stages of the backbone."""

    mirrored: Vectors | None
    mirror_maps: Maps | None
    others: tuple[Vectors, ...]


def pictures(
    table: ImageTable, name: str, augment: AugmentConfig, device: torch.device, *, from_files: bool
) -> Pictures:
    """What a backbone makes of the pictures, from the cache if it is there.

    Mirror images are left out where they would be of another class (``augment.flip``), zoom and whole photo where they
    are not wanted or nobody has the files any more.
    """
    files = from_files and table.originals is not None
    number = int(augment.flip) + (len(FROM_FILES.fits) if files else 0)
    if not number:
        return Pictures(None, None, ())
    images = table.images
    settings: dict[str, Any] = {
        "pixels": pixel_hash(images),
        "shape": list(images.shape),
        "weights": identity(name),
        "mirror": LAST_STAGES[0] if augment.flip else None,
        "files": [ZOOM, picture_size(images.shape[1])] if files else None,
        "half": cpu_computes_in_half(),
        "unissl": __version__,
    }
    settings |= {} if augment.crop is None else {"crop": augment.crop}

    def make(folder: Path) -> dict[str, Any]:
        net = backbone(name, images.shape[3]).to(device)
        views = ImageViews(images, augment, *normalisation(images.shape[3]), device)
        map_shape = inner_shape(net, views.shape) if augment.flip else None
        lengths = {"vectors": number * net.feat_dim * 4} | ({} if map_shape is None else {"maps": prod(map_shape) * 2})
        with ExitStack() as opened:
            writers = [
                opened.enter_context(RowWriter(folder / f"{kind}.npy", (len(images), length)))
                for kind, length in lengths.items()
            ]
            _write(in_half(net), views, decoded(table) if files else None, writers)
        return {"length": net.feat_dim, "map": map_shape}

    entry = cached("pictures", [], settings, make)
    made: Vectors = entry.arrays["vectors"].view(np.float32).reshape(len(images), number, entry.meta["length"])
    if not augment.flip:
        return Pictures(None, None, tuple(made[:, place] for place in range(number)))
    maps: Maps = entry.arrays["maps"].view(np.float16).reshape(len(images), 1, *entry.meta["map"])
    return Pictures(made[:, 0], maps, tuple(made[:, place] for place in range(1, number)))


def _write(
    net: Network, views: ImageViews, strips: Iterator[npt.NDArray[np.uint8]] | None, writers: list[RowWriter]
) -> None:
    """Row by row, vectors of the mirror image, if there is a place for its map, and of the squares of a strip."""
    with torch.inference_mode(), Progress("features of more pictures", len(views)) as progress:
        for start in range(0, len(views), BATCH):
            rows = np.arange(start, min(start + BATCH, len(views)))
            vectors = []
            if len(writers) > 1:
                mirrored, maps = look(net, views("none", rows).flip(3), maps=True)
                vectors.append(mirrored)
                write_rows(writers[1], start, [maps])
            if strips is not None:
                for square in as_squares(strips, len(rows), views.device):
                    vectors += look(net, normalise(square, views.mean, views.std), maps=False)
            write_rows(writers[0], start, vectors)
            progress.advance(len(rows))


def picture_size(size: int) -> int:
    """Side of zoom and whole photo, in pixels, beside images of ``size``: a multiple of ``STEP``."""
    return max(STEP, round(SMALLER * size / STEP) * STEP)


def decoded(table: ImageTable) -> Iterator[npt.NDArray[np.uint8]]:
    """Zoom and whole photo side by side, (s, 2 s, channels), for each row of a table in turn."""
    assert table.originals is not None
    size, channels = picture_size(table.images.shape[1]), table.images.shape[3]
    for row, pixels in decode_stream(enumerate(table.originals()), size, channels, FROM_FILES):
        if isinstance(pixels, Unreadable):
            name = f"Image {row + 1}" if table.files is None else table.files[row]
            raise UserError(f"{name} could be read before and cannot be read any more ({pixels}); put it back.")
        yield pixels


def as_squares(strips: Iterator[npt.NDArray[np.uint8]], count: int, device: torch.device) -> tuple[Tensor, ...]:
    """The next ``count`` strips, cut into squares (count, s, s, channels)."""
    strip = torch.from_numpy(np.stack(list(islice(strips, count)))).to(device)
    side = strip.shape[1]
    return tuple(strip[:, :, left : left + side] for left in range(0, strip.shape[2], side))


@dataclass(frozen=True)
class MoreMaps:
    """Maps (N, V, h, w, c) and those of further views (N, V', h, w, c), as if they were one array."""

    first: Maps
    further: Maps

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.first), self.first.shape[1] + self.further.shape[1], *self.first.shape[2:]

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, place: tuple[Rows, Rows]) -> Maps:
        rows, views = place
        known = self.first.shape[1]
        chosen = np.empty((len(rows), *self.shape[2:]), dtype=np.float16)
        for maps, mine, shift in ((self.first, views < known, 0), (self.further, views >= known, known)):
            chosen[mine] = maps[rows[mine], views[mine] - shift]
        return chosen
