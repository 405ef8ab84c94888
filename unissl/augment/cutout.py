"""Cutout: one grey rectangle per image, the pixels that Pillow's ImageDraw.rectangle would fill."""

from __future__ import annotations

import numpy as np

from unissl.augment.arrays import Array, Floats, Ints, send

COLOUR = (125, 123, 114)
"""The rectangle's red, green and blue."""
GREY = 123
"""The same as a grey level: Pillow's luma of ``COLOUR``, used for images of one channel."""


def cutout(images: Array, draws: Floats, largest: float) -> None:
    """Fill a square of side U(0, largest) * width, cut at the image's edge, in each image of uint8 (n, H, W, C).

    ``draws`` is uniform (n, 3): side, then x and y of the centre, which lies between 1 and the size.
    """
    n, height, width, channels = images.shape
    side = draws[:, 0] * largest * width
    left, columns = _covered(side, draws[:, 1], width)
    top, rows = _covered(side, draws[:, 2], height)
    # The rectangles are a small part of the images: listing their pixels, row by row, is cheaper than a mask.
    starts = _runs((np.arange(n) * height + top) * width + left, rows, width)
    inside = send(_runs(starts, columns.repeat(rows), 1), images)
    pixels = images.reshape(-1, channels)
    for channel, level in enumerate(COLOUR if channels == 3 else (GREY,)):
        pixels[:, channel][inside] = level


def _covered(side: Floats, draw: Floats, size: int) -> tuple[Ints, Ints]:
    """First row or column in the rectangle, and how many; both ends are cut to whole numbers and belong to it."""
    centre = 1 + (size - 1) * draw
    first = np.floor(np.maximum(centre - side / 2, 0))
    last = np.floor(np.minimum(first + side, size - 1))
    return first.astype(np.int64), (last - first + 1).astype(np.int64)


def _runs(starts: Ints, lengths: Ints, step: int) -> Ints:
    """start, start + step, start + 2 * step, ... for each start, as many as its length, one after the other."""
    ends = lengths.cumsum()
    offsets = (starts - (ends - lengths) * step).repeat(lengths)
    offsets += np.arange(0, len(offsets) * step, step)
    return offsets
