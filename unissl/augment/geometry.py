"""Geometry of views: crop, flip and nearest-neighbour affine warps, bit for bit as Pillow.

The source position of a pixel is the sum of a term of its column and a term of its row. The terms are computed on the
CPU, in float64 and the fixed-point numbers Pillow uses; adding them up and fetching pixels is all the device does.
Two nearest-neighbour warps are not one warp by the product of their matrices, so matrices are never multiplied.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Terms = npt.NDArray[np.int32]

ONE = 1 << 16
"""The number 1 in 16.16 fixed point."""


class Window(NamedTuple):
    """Which pixels of n images a view shows."""

    rows: Terms
    """(n, height of the view)"""
    columns: Terms
    """(n, width of the view); backwards where the view is mirrored"""


def window(
    size: tuple[int, int], top: Ints, left: Ints, flip: npt.NDArray[np.bool_], margin: int, side: int | None = None
) -> Window:
    """Pad images of ``size`` (height, width) by reflection, cut the original size, or a square of ``side``, at
    (top, left) of the padded image, mirror those with ``flip``. The cut must lie within the padded image."""
    height, width = size
    columns = _starts(width, margin, side or width)
    both = np.concatenate([columns, columns[:, ::-1]])
    return Window(_starts(height, margin, side or height).take(top, 0), both.take(left + len(columns) * flip, 0))


def _starts(size: int, margin: int, length: int) -> Terms:
    """Positions in a row of a size that is mirrored at both ends, without repeating them, for each start of a cut."""
    position = np.arange(-margin, size + margin - length + 1)[:, None] + np.arange(length)
    return ((size - 1) - abs((size - 1) - abs(position))).astype(np.int32)


class Source(NamedTuple):
    """Where the pixels of n images come from, in 16.16: x + x_by_row and y + y_by_column."""

    x: Terms
    """(n, W)"""
    y: Terms
    """(n, H)"""
    x_by_row: Terms
    """(n, H)"""
    y_by_column: Terms
    """(n, W)"""


def shear_x(amount: Floats, height: int, width: int) -> Source:
    x = _line(0.5 + amount * 0.5, np.ones_like(amount), width)
    return Source(x, _unmoved(amount, height), _line(np.zeros_like(amount), amount, height), _zero(amount, width))


def shear_y(amount: Floats, height: int, width: int) -> Source:
    y = _line(amount * 0.5 + 0.5, np.ones_like(amount), height)
    return Source(_unmoved(amount, width), y, _zero(amount, height), _line(np.zeros_like(amount), amount, width))


def translate_x(share: Floats, height: int, width: int) -> Source:
    x = _steps(share * width + 0.5, width)
    return Source(x, _unmoved(share, height), _zero(share, height), _zero(share, width))


def translate_y(share: Floats, height: int, width: int) -> Source:
    y = _steps(share * height + 0.5, height)
    return Source(_unmoved(share, width), y, _zero(share, height), _zero(share, width))


def rotate(degrees: Floats, height: int, width: int) -> Source:
    """Counter-clockwise about the centre."""
    angle = -((degrees % 360.0) * (math.pi / 180.0))
    cos, sin = np.cos(angle).round(15), np.sin(angle).round(15)
    x, y = width / 2, height / 2
    left = (cos * -x + sin * -y + x) + cos * 0.5 + sin * 0.5
    top = (-sin * -x + cos * -y + y) + -sin * 0.5 + cos * 0.5
    zero = np.zeros_like(degrees)
    return Source(_line(left, cos, width), _line(top, cos, height), _line(zero, sin, height), _line(zero, -sin, width))


def _line(start: Floats, step: Floats, size: int) -> Terms:
    """start, start + step, ..., all in fixed point: Pillow's way for maps that turn or shear."""
    terms: Terms = np.floor(np.stack([start, step])[:, :, None] * ONE + 0.5).astype(np.int32)
    line: Terms = terms[0] + terms[1] * np.arange(size, dtype=np.int32)
    return line


def _steps(start: Floats, size: int) -> Terms:
    """start, start + 1, ..., as a running sum in float64: Pillow's way for all other maps; -1 for what is negative."""
    position = np.ones((len(start), size))
    position[:, 0] = start
    position = position.cumsum(1)
    return np.maximum(np.floor(position), -1).astype(np.int32) * ONE


def _unmoved(like: Floats, size: int) -> Terms:
    return np.tile(np.arange(0, size * ONE, ONE, dtype=np.int32), (len(like), 1))


def _zero(like: Floats, size: int) -> Terms:
    return np.zeros((len(like), size), np.int32)


def crop(images: Tensor, crop_window: Window) -> Tensor:
    """What the window shows of images, uint8 (n, H, W, C)."""
    rows, columns = _send(images, *crop_window)
    return _fetch(images, rows[:, :, None], columns[:, None])


def warp(images: Tensor, source: Source) -> Tensor:
    """Images, uint8 (n, H, W, C), with each pixel from its source; black where that lies outside."""
    _, height, width, _ = images.shape
    x, y, x_by_row, y_by_column = _send(images, *source)
    # A black frame of one pixel catches everything outside, which is cheaper than masks.
    rows = ((y[:, :, None] + y_by_column[:, None]) >> 16).clamp(-1, height) + 1
    columns = ((x[:, None] + x_by_row[:, :, None]) >> 16).clamp(-1, width) + 1
    return _fetch(pad(images, (0, 0, 1, 1, 1, 1)), rows, columns)


def _send(images: Tensor, *terms: Terms) -> list[Tensor]:
    return [torch.from_numpy(term).to(images.device) for term in terms]


def _fetch(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Pixels of each image at ``rows`` and ``columns``, which broadcast to (n, height, width)."""
    image = torch.arange(len(images), device=images.device)[:, None, None]
    return images[image, rows, columns]
