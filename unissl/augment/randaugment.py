"""RandAugment as the semi-supervised literature uses it: operations and magnitudes are drawn for every image.

Each of the slots draws one of 14 operations with replacement and a magnitude uniform in its range (methods with
a fixed global magnitude exist; this is not one). Signs come from the range, nothing is negated at random.
Cubuk et al., RandAugment, 2020, https://arxiv.org/abs/1909.13719; this form: Sohn et al., FixMatch, 2020,
https://arxiv.org/abs/2001.07685.

Cutout follows it: one grey rectangle per image, the pixels that Pillow's ImageDraw.rectangle would fill.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unissl.augment import geometry, levels
from unissl.augment.geometry import Floats, Ints

COLOUR = (125, 123, 114)
"""The rectangle's red, green and blue."""
GREY = 123
"""The same as a grey level: Pillow's luma of ``COLOUR``, used for images of one channel."""


@dataclass(frozen=True)
class Operation:
    """One entry of the table: what it is called, its range of magnitudes, and one of the two ways to do it."""

    name: str
    low: float = 0.0
    high: float = 0.0
    change: Callable[[Tensor, Tensor], Tensor] | None = None
    """(images, magnitudes on the CPU): the changed images."""
    source: Callable[[Floats, int, int], geometry.Source] | None = None
    """(magnitudes, height, width): the source positions of pixels."""


OPERATIONS = (
    Operation("AutoContrast", change=lambda images, _: levels.autocontrast(images)),
    Operation("Brightness", 0.05, 0.95, levels.brightness),
    Operation("Color", 0.05, 0.95, levels.color),
    Operation("Contrast", 0.05, 0.95, levels.contrast),
    Operation("Equalize", change=lambda images, _: levels.equalize(images)),
    Operation("Identity"),
    Operation("Posterize", 4, 8, levels.posterize),
    Operation("Sharpness", 0.05, 0.95, levels.sharpness),
    Operation("Solarize", 0, 256, levels.solarize),
    Operation("Rotate", -30, 30, source=geometry.rotate),
    Operation("ShearX", -0.3, 0.3, source=geometry.shear_x),
    Operation("ShearY", -0.3, 0.3, source=geometry.shear_y),
    Operation("TranslateX", -0.3, 0.3, source=geometry.translate_x),
    Operation("TranslateY", -0.3, 0.3, source=geometry.translate_y),
)


def choose(draws: Floats, geometry_scale: float) -> tuple[Ints, Floats]:
    """Positions in ``OPERATIONS`` and magnitudes, both (n, slots).

    ``draws`` is uniform with a pair of columns (operation, magnitude) per slot; ``geometry_scale`` multiplies the
    ranges of shear, translate and rotate.
    """
    scale = np.array([geometry_scale if operation.source else 1.0 for operation in OPERATIONS])
    low = scale * np.array([operation.low for operation in OPERATIONS])
    high = scale * np.array([operation.high for operation in OPERATIONS])
    choice = (draws[:, 0::2] * len(OPERATIONS)).astype(np.int64)
    return choice, low[choice] + (high - low)[choice] * draws[:, 1::2]


def randaugment(images: Tensor, choice: Ints, magnitudes: Floats) -> Tensor:
    """Images uint8 (n, H, W, C), each through its own operations, slot after slot (see ``choose``)."""
    images = images.clone()
    for slot in range(choice.shape[1]):
        for number, operation in enumerate(OPERATIONS):
            members = np.flatnonzero(choice[:, slot] == number)
            if len(members):
                where = torch.from_numpy(members).to(images.device)
                images[where] = apply(operation, images[where], magnitudes[members, slot])
    return images


def apply(operation: Operation, images: Tensor, magnitudes: Floats) -> Tensor:
    """One operation for all images."""
    if operation.source:
        return geometry.warp(images, operation.source(magnitudes, *images.shape[1:3]))
    return operation.change(images, torch.from_numpy(magnitudes)) if operation.change else images


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
