"""Cutout: one grey rectangle per image, the pixels that Pillow's ImageDraw.rectangle would fill."""

from __future__ import annotations

import torch
from torch import Tensor

COLOUR = (125, 123, 114)
"""The rectangle's red, green and blue."""
GREY = 123
"""The same as a grey level: Pillow's luma of ``COLOUR``, used for images of one channel."""


def cutout(planes: Tensor, draws: Tensor, largest: float) -> Tensor:
    """Fill a square of side U(0, largest) * width, cut at the image's edge, in each image of uint8 (n, C, H, W).

    ``draws`` is uniform float64 (n, 3) on the CPU: side, then x and y of the centre, which lies between 1 and the size.
    """
    _, channels, height, width = planes.shape
    side = draws[:, 0] * largest * width
    columns = _covered(side, draws[:, 1], width).to(planes.device)
    rows = _covered(side, draws[:, 2], height).to(planes.device)
    hole = (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1)  # all bits set inside
    colour = torch.tensor(COLOUR if channels == 3 else (GREY,), dtype=torch.uint8, device=planes.device)
    return planes ^ ((planes ^ colour.view(-1, 1, 1)) & hole)


def _covered(side: Tensor, draw: Tensor, size: int) -> Tensor:
    """255 where a row or column lies in the rectangle, else 0, uint8 (n, size); both ends are cut to whole numbers
    and belong to it."""
    centre = 1 + (size - 1) * draw
    first = (centre - side / 2).clamp(min=0).floor()
    last = (first + side).clamp(max=size).floor()
    position = torch.arange(size)
    inside = (position >= first.unsqueeze(1)) & (position <= last.unsqueeze(1))
    return inside.to(torch.uint8).neg_()
