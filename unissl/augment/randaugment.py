"""RandAugment as the semi-supervised literature uses it: operations and magnitudes are drawn anew for every image.

Each of the slots draws one of 14 operations with replacement and a magnitude uniform in its range (methods with
a fixed global magnitude exist; this is not one). Signs come from the range, nothing is negated at random.
Cubuk et al., RandAugment, 2020, https://arxiv.org/abs/1909.13719; this form: Sohn et al., FixMatch, 2020,
https://arxiv.org/abs/2001.07685.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from unissl.augment import enhance, geometry, pointwise
from unissl.augment.arrays import Array, Floats, Ints, send


@dataclass(frozen=True)
class Operation:
    """One entry of the table: what it is called, its range of magnitudes, and one of the two ways to do it."""

    name: str
    low: float = 0.0
    high: float = 0.0
    change: Callable[[Array, Floats], None] | None = None
    """(images, magnitudes): changes the images in place."""
    source: Callable[[Floats, int, int], geometry.Source] | None = None
    """(magnitudes, height, width): says where pixels come from; such operations share one fetch of pixels."""


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
"""Those with a source come last, so that images sorted by operation have them side by side."""


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


def first_order(choice: Ints) -> Ints:
    """Images (n,) sorted by the operation of their first slot."""
    return choice[:, 0].argsort(kind="stable") if choice.shape[1] else np.arange(len(choice))


def randaugment(images: Array, choice: Ints, magnitudes: Floats) -> Array:
    """Images uint8 (n, H, W, C), each through its own operations, slot after slot (see ``choose``).

    They come in ``first_order``, into which the crop before can put them at no cost, and leave in the order of
    ``choice``. The input may be changed.
    """
    place = first_order(choice).argsort()  # of each image of the batch among ``images``
    sources = _sources(choice, magnitudes, images.shape[1], images.shape[2])
    for slot in range(choice.shape[1]):
        order = choice[:, slot].argsort(kind="stable")
        if slot:
            images, place = _reorder(images, place[order]), order.argsort()
        sizes = np.bincount(choice[:, slot], minlength=len(OPERATIONS)).tolist()
        _apply_sorted(images, sizes, magnitudes[order, slot], sources[slot])
    return _reorder(images, place)


def _reorder(images: Array, order: Ints) -> Array:
    return images[send(order, images)] if isinstance(images, Tensor) else images.take(order, 0)


def _sources(choice: Ints, magnitudes: Floats, height: int, width: int) -> list[list[geometry.Source]]:
    """By slot, the sources of the images that move, in the order of their operations; made for all slots at once."""
    by_slot: list[list[geometry.Source]] = [[] for _ in range(choice.shape[1])]
    for number, operation in enumerate(OPERATIONS):
        if operation.source:
            where = (choice == number).T
            source, end = operation.source(magnitudes.T[where], height, width), 0
            for slot, size in enumerate(where.sum(1).tolist()):
                by_slot[slot].append(source.part(slice(end, end + size)))
                end += size
    return by_slot


def _apply_sorted(images: Array, sizes: list[int], magnitudes: Floats, sources: list[geometry.Source]) -> None:
    """One operation per image, in place; the first ``sizes[0]`` images take the first operation, and so on."""
    start = 0
    for operation, size in zip(OPERATIONS, sizes, strict=True):
        if operation.source:
            break
        if operation.change and size:
            members = slice(start, start + size)
            operation.change(images[members], magnitudes[members])
        start += size
    geometry.warp(images[start:], sources)
