"""Cutout: one grey rectangle per image, the pixels that Pillow's ImageDraw.rectangle would fill."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unissl.augment.geometry import Floats, Ints

COLOUR = (125, 123, 114)
"""The rectangle's red, green and blue."""
GREY = 123
"""The same as a grey level: Pillow's luma of ``COLOUR``, used for images of one channel."""


def rectangles(draws: Floats, largest: float, height: int, width: int) -> Ints:
    """First and last row, first and last column, (n, 4), of squares of side U(0, largest) * width, cut at the edge.

    ``draws`` is uniform (n, 3): side, then x and y of the centre, which lies between 1 and the size. Where ``largest``
    is 0 the rectangles are empty.
    """
    if not largest:
        return np.tile(np.array([0, -1, 0, -1]), (len(draws), 1))
    side = draws[:, 0] * largest * width
    ends = [*_covered(side, draws[:, 2], height), *_covered(side, draws[:, 1], width)]
    return np.stack(ends, 1).astype(np.int64)


def _covered(side: Floats, draw: Floats, size: int) -> tuple[Floats, Floats]:
    """First and last row or column in the rectangle; both ends are cut to whole numbers and belong to it."""
    centre = 1 + (size - 1) * draw
    first = np.floor(np.maximum(centre - side / 2, 0))
    return first, np.floor(np.minimum(first + side, size - 1))


def cutout(images: Tensor, filled: Ints) -> Tensor:
    """Fill a rectangle of each image of uint8 (n, H, W, C)."""
    _, height, width, channels = images.shape
    top, bottom, left, right = torch.from_numpy(filled.T.copy()).to(images.device)[:, :, None]
    row, column = (torch.arange(size, device=images.device) for size in (height, width))
    inside = ((row >= top) & (row <= bottom))[:, :, None] & ((column >= left) & (column <= right))[:, None]
    colour = torch.tensor(COLOUR if channels == 3 else (GREY,), dtype=torch.uint8).to(images.device)
    return torch.where(inside[..., None], colour, images)
