"""RandAugment as the semi-supervised literature uses it: operations and magnitudes are drawn anew for every image.

Each of the slots draws one of 14 operations with replacement and a magnitude uniform in its range (methods with
a fixed global magnitude exist; this is not one). Signs come from the range, nothing is negated at random.
Cubuk et al., RandAugment, 2020, https://arxiv.org/abs/1909.13719; this form: Sohn et al., FixMatch, 2020,
https://arxiv.org/abs/2001.07685.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unissl.augment import enhance, geometry, pointwise


@dataclass(frozen=True)
class Operation:
    """One entry of the table: what it is called, its range of magnitudes, and one of the two ways to do it."""

    name: str
    low: float = 0.0
    high: float = 0.0
    change: Callable[[Tensor, Tensor], Tensor] | None = None
    """(planes, magnitudes) -> planes"""
    matrix: Callable[[Tensor, int, int], Tensor] | None = None
    """(magnitudes, height, width) -> affine matrices; such operations share one warp."""


OPERATIONS = (
    Operation("AutoContrast", change=lambda planes, _: pointwise.autocontrast(planes)),
    Operation("Brightness", 0.05, 0.95, enhance.brightness),
    Operation("Color", 0.05, 0.95, enhance.color),
    Operation("Contrast", 0.05, 0.95, enhance.contrast),
    Operation("Equalize", change=lambda planes, _: pointwise.equalize(planes)),
    Operation("Identity", change=lambda planes, _: planes),
    Operation("Posterize", 4, 8, pointwise.posterize),
    Operation("Sharpness", 0.05, 0.95, enhance.sharpness),
    Operation("Solarize", 0, 256, pointwise.solarize),
    Operation("Rotate", -30, 30, matrix=geometry.rotate),
    Operation("ShearX", -0.3, 0.3, matrix=geometry.shear_x),
    Operation("ShearY", -0.3, 0.3, matrix=geometry.shear_y),
    Operation("TranslateX", -0.3, 0.3, matrix=geometry.translate_x),
    Operation("TranslateY", -0.3, 0.3, matrix=geometry.translate_y),
)
"""The affine ones come last, so that images sorted by operation have them side by side."""


def choose(draws: Tensor, geometry_scale: float) -> tuple[Tensor, Tensor]:
    """Positions in ``OPERATIONS``, int64, and magnitudes, float64, both (n, slots) on the CPU.

    ``draws`` is uniform float64 with a pair of columns (operation, magnitude) per slot; ``geometry_scale``
    multiplies the ranges of shear, translate and rotate.
    """
    scale = torch.tensor([geometry_scale if operation.matrix else 1.0 for operation in OPERATIONS], dtype=draws.dtype)
    low = scale * torch.tensor([operation.low for operation in OPERATIONS], dtype=draws.dtype)
    high = scale * torch.tensor([operation.high for operation in OPERATIONS], dtype=draws.dtype)
    choice = (draws[:, 0::2] * len(OPERATIONS)).to(torch.int64)
    return choice, low[choice] + (high - low)[choice] * draws[:, 1::2]


def randaugment(planes: Tensor, choice: Tensor, magnitudes: Tensor) -> Tensor:
    """Planes uint8 (n, C, H, W), each image through its own operations, slot after slot (see ``choose``)."""
    sources = _affine_sources(choice, magnitudes, planes.shape[2], planes.shape[3])
    for slot in range(choice.shape[1]):
        order = choice[:, slot].argsort()
        sizes = choice[:, slot].bincount(minlength=len(OPERATIONS)).tolist()
        planes = planes.index_select(0, order.to(planes.device))
        planes = _apply_sorted(planes, sizes, magnitudes[order, slot], sources[order, slot])
        planes = planes.index_select(0, order.argsort().to(planes.device))
    return planes


def _affine_sources(choice: Tensor, magnitudes: Tensor, height: int, width: int) -> Tensor:
    """What ``warp`` needs, (n, slots, 2 (W + H)): for all slots at once, since small steps cost by their number."""
    matrices = torch.zeros(*choice.shape, 6, dtype=magnitudes.dtype)
    for number, operation in enumerate(OPERATIONS):
        if operation.matrix:
            where = choice == number
            matrices[where] = operation.matrix(magnitudes[where], height, width)
    affine = torch.tensor([operation.matrix is not None for operation in OPERATIONS])[choice]
    sources = torch.zeros(*choice.shape, 2 * (width + height), dtype=torch.int32)
    sources[affine] = geometry.source_terms(matrices[affine], height, width)
    return sources


def _apply_sorted(planes: Tensor, sizes: list[int], magnitudes: Tensor, sources: Tensor) -> Tensor:
    """One operation per image; the first ``sizes[0]`` images take the first operation, and so on."""
    done, start = [], 0
    for operation, size in zip(OPERATIONS, sizes, strict=True):
        if operation.change and size:
            members = slice(start, start + size)
            done.append(operation.change(planes[members], magnitudes[members]))
            start += size
    return torch.cat([*done, geometry.warp(planes[start:], sources[start:])])
