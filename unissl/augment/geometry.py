"""Moves of pixels: crop, flip and nearest-neighbour affine warps, bit for bit as Pillow.

Where a pixel comes from is a sum of a term of its column and a term of its row. The terms are computed on the
CPU, in float64 and the fixed-point numbers Pillow uses; adding them up and fetching pixels is all the device does.
Two nearest-neighbour warps are not one warp by the product of their matrices, so matrices are never multiplied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unissl.augment.arrays import Array, Floats, Ints, add, empty, send, take
from unissl.augment.pixels import pack, unpack

Terms = npt.NDArray[np.int32]

ONE = 1 << 16
"""The number 1 in 16.16 fixed point."""


def crop_and_flip(
    images: Array,
    order: Ints,
    top: Ints,
    left: Ints,
    flip: npt.NDArray[np.bool_],
    margin: int,
    side: int | None = None,
) -> Array:
    """Pad by reflection, cut the original size, or a square of ``side``, at (top, left) of the padded image, mirror
    where ``flip`` says so.

    ``images`` are uint8 (n, H, W, C). The result is images[order], each by its own ``top`` and ``left``, which leave
    the cut within the padded image, and ``flip``.
    """
    _, height, width, channels = images.shape
    columns = _windows(width, margin, side or width)
    x = np.concatenate([columns, columns[:, ::-1]]).take(left + len(columns) * flip, 0)
    y = (_windows(height, margin, side or height) * width).take(top, 0)
    y += (order * (height * width)).astype(np.int32)[:, None]
    positions = send(y, images)[:, :, None] + send(x, images)[:, None]
    cropped = empty((len(order), side or height, side or width, channels), "uint8", images)
    unpack(take(pack(images), positions), cropped)
    return cropped


def _windows(size: int, margin: int, length: int) -> Terms:
    """Positions in a row of a size that is mirrored at both ends, without repeating them, for each start of a cut."""
    position = np.arange(-margin, size + margin - length + 1)[:, None] + np.arange(length)
    return ((size - 1) - abs((size - 1) - abs(position))).astype(np.int32)


@dataclass(frozen=True)
class Source:
    """Where the pixels of n images come from, in 16.16: x + x_by_row and y + y_by_column.

    A term that is None is zero. Then columns stay columns, or rows rows, and there is less to compute.
    """

    x: Terms
    """(n, W)"""
    y: Terms
    """(n, H)"""
    x_by_row: Terms | None = None
    """(n, H)"""
    y_by_column: Terms | None = None
    """(n, W)"""

    def part(self, members: slice) -> Source:
        terms = (self.x, self.y, self.x_by_row, self.y_by_column)
        return Source(*(None if term is None else term[members] for term in terms))  # type: ignore[arg-type]


def shear_x(amount: Floats, height: int, width: int) -> Source:
    x = _line(0.5 + amount * 0.5, np.ones_like(amount), width)
    return Source(x, _unmoved(amount, height), x_by_row=_line(np.zeros_like(amount), amount, height))


def shear_y(amount: Floats, height: int, width: int) -> Source:
    y = _line(amount * 0.5 + 0.5, np.ones_like(amount), height)
    return Source(_unmoved(amount, width), y, y_by_column=_line(np.zeros_like(amount), amount, width))


def translate_x(share: Floats, height: int, width: int) -> Source:
    return Source(_steps(share * width + 0.5, width), _unmoved(share, height))


def translate_y(share: Floats, height: int, width: int) -> Source:
    return Source(_unmoved(share, width), _steps(share * height + 0.5, height))


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
    return np.broadcast_to(np.arange(0, size * ONE, ONE, dtype=np.int32), (len(like), size))


def warp(images: Array, sources: list[Source]) -> None:
    """Change images in place, the first ones by the first source, and so on; black where the source lies outside."""
    n, height, width, _ = images.shape
    # A black frame of one pixel catches everything outside, which is cheaper than masks.
    framed = pack(images, frame=1)
    corner = np.arange(n, dtype=np.int32)[:, None] * ((height + 2) * (width + 2)) + (width + 3)
    positions = empty((n, height, width), "int32", images)
    start = 0
    for source in sources:
        members = slice(start, start + len(source.x))
        _write_positions(source, corner[members], positions[members])
        start += len(source.x)
    unpack(take(framed, positions), images)


def _write_positions(source: Source, corner: Terms, out: Array) -> None:
    """Positions (n, H, W) in framed images whose first pixel inside the frame is at ``corner`` (n, 1)."""
    _, height, width = out.shape
    if source.x_by_row is None:
        x = send((source.x >> 16).clip(-1, width), out)[:, None]
    else:
        x = send(source.x, out)[:, None] + send(source.x_by_row, out)[:, :, None]
        x >>= 16
        x = x.clip(-1, width)
    if source.y_by_column is None:
        y = send((source.y >> 16).clip(-1, height) * (width + 2) + corner, out)[:, :, None]
    else:
        y = send(source.y, out)[:, :, None] + send(source.y_by_column, out)[:, None]
        y >>= 16
        y = y.clip(-1, height)
        y *= width + 2
        y += send(corner, out)[:, None]
    add(x, y, out)
