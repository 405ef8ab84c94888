"""Moves of pixels: crop, flip and nearest-neighbour affine warps, bit for bit as Pillow.

Where a pixel comes from is a sum of a term of its column and a term of its row. The terms are computed on the
CPU, in float64 and the fixed-point numbers Pillow uses; adding them up and fetching pixels is all the device does.
Two nearest-neighbour warps are not one warp by the product of their matrices, so matrices are never multiplied.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

ONE = 1 << 16
"""The number 1 in 16.16 fixed point."""


def crop_and_flip(images: Tensor, top: Tensor, left: Tensor, flip: Tensor, margin: int, *, planar: bool) -> Tensor:
    """Pad by reflection, cut the original size at (top, left) of the padded image, mirror where ``flip`` says so.

    ``images`` is uint8 (n, H, W, C), the result too, or (n, C, H, W) if ``planar``. ``top`` and ``left`` are
    int64 (n,) in 0..2*margin, ``flip`` is bool (n,); all three on the CPU.
    """
    n, height, width, channels = images.shape
    column = torch.arange(width).expand(n, width)
    column = torch.where(flip.unsqueeze(1), width - 1 - column, column)
    x = _reflect(column + left.unsqueeze(1) - margin, width) * channels  # (n, W), in bytes
    y = _reflect(torch.arange(height) + top.unsqueeze(1) - margin, height) * (width * channels)  # (n, H)
    y += torch.arange(n).unsqueeze(1) * (height * width * channels)
    channel = torch.arange(channels)
    # The channel joins the term that makes the inner loop long: the columns, or where planes are wanted the rows.
    if planar:
        y = (y.unsqueeze(1) + channel.view(1, -1, 1)).flatten(1)  # (n, C*H)
    else:
        x = (x.unsqueeze(2) + channel).flatten(1)  # (n, W*C)
    y, x = y.to(torch.int32).to(images.device), x.to(torch.int32).to(images.device)
    shape = (n, channels, height, width) if planar else images.shape
    return images.flatten().index_select(0, (y.unsqueeze(2) + x.unsqueeze(1)).flatten()).view(shape)


def _reflect(position: Tensor, size: int) -> Tensor:
    """Mirror at the first and the last pixel without repeating them: -1 is 1, and size is size - 2."""
    return (size - 1) - ((size - 1) - position.abs()).abs()


def shear_x(amount: Tensor, height: int, width: int) -> Tensor:
    return _matrix(amount, b=amount)


def shear_y(amount: Tensor, height: int, width: int) -> Tensor:
    return _matrix(amount, d=amount)


def translate_x(share: Tensor, height: int, width: int) -> Tensor:
    return _matrix(share, c=share * width)


def translate_y(share: Tensor, height: int, width: int) -> Tensor:
    return _matrix(share, f=share * height)


def rotate(degrees: Tensor, height: int, width: int) -> Tensor:
    """Counter-clockwise about the centre."""
    angle = -(degrees.remainder(360.0) * (math.pi / 180.0))
    cos, sin = (torch.round(value, decimals=15) for value in (angle.cos(), angle.sin()))
    x, y = width / 2, height / 2
    return _matrix(angle, a=cos, b=sin, c=cos * -x + sin * -y + x, d=-sin, e=cos, f=-sin * -x + cos * -y + y)


def _matrix(like: Tensor, **entries: Tensor) -> Tensor:
    """(n, 6): output pixel (x, y) comes from (a x + b y + c, d x + e y + f); the identity where not given."""
    identity = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0, "e": 1.0, "f": 0.0}
    return torch.stack([entries.get(name, torch.full_like(like, value)) for name, value in identity.items()], 1)


def source_terms(matrix: Tensor, height: int, width: int) -> Tensor:
    """Where pixels come from, in 16.16, int32 (n, 2 (W + H)), by affine maps float64 (n, 6), all on the CPU.

    Side by side: source x by column (W) and by row (H), source y by column (W) and by row (H). Pillow has two
    ways: pure scalings step through the image in float64, all else in fixed point.
    """
    a, b, c, d, e, f = matrix.unsqueeze(2).unbind(1)  # (n, 1) each
    column, row = torch.arange(width), torch.arange(height)
    x_column = _fixed(c + a * 0.5 + b * 0.5) + _fixed(a) * column
    y_column = _fixed(f + d * 0.5 + e * 0.5) + _fixed(d) * column
    fixed = [x_column, _fixed(b) * row, y_column, _fixed(e) * row]
    x, y = _stepped(c + a * 0.5, a, width), _stepped(f + e * 0.5, e, height)
    stepped = [x, torch.zeros_like(y), torch.zeros_like(x), y]
    scaling = (b == 0) & (d == 0)
    return torch.where(scaling, torch.cat(stepped, 1), torch.cat(fixed, 1)).to(torch.int32)


def warp(planes: Tensor, sources: Tensor) -> Tensor:
    """Planes (n, C, H, W), each image from its own ``source_terms``; black where the source lies outside."""
    n, channels, height, width = planes.shape
    # The terms as (n, 1, W) or (n, H, 1), so that their sums are (n, H, W).
    terms = sources.to(planes.device).split([width, height, width, height], dim=1)  # type: ignore[no-untyped-call]
    x = (terms[0].unsqueeze(1) + terms[1].unsqueeze(2)).bitwise_right_shift_(16)
    y = (terms[2].unsqueeze(1) + terms[3].unsqueeze(2)).bitwise_right_shift_(16)
    # A black frame of one pixel catches everything outside, which is cheaper than masks.
    framed = pad(planes, (1, 1, 1, 1))
    pixel = y.clamp_(-1, height).mul_(width + 2).add_(x.clamp_(-1, width))
    size = (height + 2) * (width + 2)
    corner = torch.arange(width + 3, width + 3 + n * channels * size, size, dtype=torch.int32, device=planes.device)
    position = pixel.view(n, 1, height * width) + corner.view(n, channels, 1)
    return framed.flatten().index_select(0, position.flatten()).view_as(planes)


def _fixed(value: Tensor) -> Tensor:
    return (value * ONE + 0.5).floor().to(torch.int64)


def _stepped(start: Tensor, step: Tensor, size: int) -> Tensor:
    """Whole source positions of start, start + step, ... with Pillow's running sum; -1 for all that is negative."""
    position = torch.cat([start, step.expand(-1, size - 1)], 1).cumsum(1)
    return torch.where(position < 0, -1.0, position.trunc()).to(torch.int64) * ONE
