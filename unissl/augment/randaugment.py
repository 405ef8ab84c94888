"""RandAugment as the semi-supervised literature uses it: operations and magnitudes are drawn for every image.

Each of the slots draws one of 14 operations with replacement and a magnitude uniform in its range (methods with
a fixed global magnitude exist; this is not one). Signs come from the range, nothing is negated at random.
Cubuk et al., RandAugment, 2020, https://arxiv.org/abs/1909.13719; this form: Sohn et al., FixMatch, 2020,
https://arxiv.org/abs/2001.07685.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unissl.augment import enhance, geometry, pointwise
from unissl.augment.geometry import Floats, Ints


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
    Operation("AutoContrast", change=lambda images, _: pointwise.autocontrast(images)),
    Operation("Brightness", 0.05, 0.95, enhance.brightness),
    Operation("Color", 0.05, 0.95, enhance.color),
    Operation("Contrast", 0.05, 0.95, enhance.contrast),
    Operation("Equalize", change=lambda images, _: pointwise.equalize(images)),
    Operation("Identity"),
    Operation("Posterize", 4, 8, pointwise.posterize),
    Operation("Sharpness", 0.05, 0.95, enhance.sharpness),
    Operation("Solarize", 0, 256, pointwise.solarize),
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
