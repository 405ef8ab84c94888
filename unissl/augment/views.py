"""Named random views of a batch, and the step from bytes to the numbers a network takes.

A view depends on (seed, step, stream, view, position in the global batch) alone: its random numbers are drawn on
the CPU and applied on whatever device holds the images. Digits at the end of a name ask for a further, independent
view of the same kind: ``strong2`` is made as ``strong`` is, from numbers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from unissl.augment.arrays import Array, Floats, Ints, from_tensor, tensor
from unissl.augment.cutout import cutout
from unissl.augment.draws import uniform_table
from unissl.augment.geometry import crop_and_flip
from unissl.augment.randaugment import choose, first_order, randaugment
from unissl.config import Settings
from unissl.errors import UserError

CROP_DRAWS = 3
"""Random numbers per image: top, left, flip."""
CUTOUT_DRAWS = 3
"""Random numbers per image: side, x, y."""


class AugmentConfig(Settings):
    """How images are varied. The defaults are the protocol of the paper for images of 32 x 32 pixels."""

    flip: bool = True
    """Mirror every second image; switch it off where left and right mean something, as in text."""
    pad: int = Field(default=4, ge=0)
    """Pixels of reflected border before the random crop; less than the image's shorter side."""
    crop: int | None = Field(default=None, ge=4)
    """Side of the square that views show of the images, at a random place or, without augmentation, in the centre.
    Left out: the images' own size, so that only the border gives room for chance."""
    operations: int = Field(default=3, ge=0)
    """RandAugment operations per strong view."""
    geometry: float = Field(default=1.0, gt=0.0, le=1.0)
    """Multiplies the ranges of shear, translate and rotate; less than 1 where a strong warp changes the class."""
    cutout: float = Field(default=0.5, ge=0.0, le=1.0)
    """Largest side of the grey square in strong views, as a share of the width; 0 is off."""
    dropout: float = Field(default=0.5, ge=0.0, lt=1.0)
    """For vectors: share of the entries that a strong view lacks."""
    label_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """For vectors: share of the entries that the weak view of a labelled image lacks. There are few of these, and
    without it a network soon knows them by heart."""
    copies: int = Field(default=3, ge=0)
    """For vectors of a frozen network: strongly augmented copies of each image that are stored beside it."""


def _none(images: Array, draws: Floats, config: AugmentConfig) -> Array:
    """The images themselves, or their centre."""
    top, left = _centre(images.shape[1:3], config)
    return images[:, top : top + config.crop, left : left + config.crop] if config.crop else images


def _flip(images: Array, draws: Floats, config: AugmentConfig) -> Array:
    """Random flip alone."""
    everything = np.arange(len(images))
    top, left = (np.full(len(images), start) for start in _centre(images.shape[1:3], config))
    return crop_and_flip(images, everything, top, left, (draws[:, 0] < 0.5) & config.flip, 0, config.crop)


def _weak(images: Array, draws: Floats, config: AugmentConfig) -> Array:
    """Random crop of the reflect-padded image, random flip."""
    return _crop(images, np.arange(len(images)), draws, config)


def _strong(images: Array, draws: Floats, config: AugmentConfig) -> Array:
    """A crop and flip of its own, RandAugment, then cutout."""
    choice, magnitudes = choose(draws[:, CROP_DRAWS:-CUTOUT_DRAWS], config.geometry)
    images = randaugment(_crop(images, first_order(choice), draws, config), choice, magnitudes)
    if config.cutout:
        cutout(images, draws[:, -CUTOUT_DRAWS:], config.cutout)
    return images


def _crop(images: Array, order: Ints, draws: Floats, config: AugmentConfig) -> Array:
    """The images[order], each cropped and flipped by its own row of ``draws``."""
    side = min(images.shape[1:3])
    if config.pad >= side:
        raise UserError(f"Setting 'augment.pad' is {config.pad}; set it below the images' side of {side} pixels.")
    starts = [_room(size, config.pad, config.crop or size) + 1 for size in images.shape[1:3]]
    top, left = (draws[order, :2] * starts).astype(np.int64).T
    flip = (draws[order, 2] < 0.5) & config.flip
    return crop_and_flip(images, order, top, left, flip, config.pad, config.crop)


def _centre(sizes: Sequence[int], config: AugmentConfig) -> list[int]:
    """Where a cut from the middle starts, along each side."""
    return [_room(size, 0, config.crop or size) // 2 for size in sizes]


def _room(size: int, pad: int, crop: int) -> int:
    """Pixels by which a cut can be moved along a side."""
    if crop > size + 2 * pad:
        raise UserError(
            f"Setting 'augment.crop' is {crop}; set it to at most the images' side of {size} pixels, or leave it out."
        )
    return size + 2 * pad - crop


@dataclass(frozen=True)
class View:
    """A kind of view: how many random numbers an image takes, and what is done with them."""

    columns: Callable[[AugmentConfig], int]
    apply: Callable[[Array, Floats, AugmentConfig], Array]


VIEWS = {
    "none": View(lambda config: 0, _none),
    "flip": View(lambda config: 1, _flip),
    "weak": View(lambda config: CROP_DRAWS, _weak),
    "strong": View(lambda config: CROP_DRAWS + 2 * config.operations + CUTOUT_DRAWS, _strong),
}


def check_view_name(name: str) -> None:
    """Raise ValueError unless the name, without digits at its end, is one of ``VIEWS``."""
    if _kind(name) not in VIEWS:
        raise ValueError(f"unknown view {name!r}; known: {', '.join(VIEWS)}, each with digits after it if wanted")


def _kind(name: str) -> str:
    return name.rstrip("0123456789")


def make_view(
    name: str,
    images: Tensor,
    config: AugmentConfig,
    *,
    seed: int,
    step: int,
    stream: str,
    positions: slice | None = None,
) -> Tensor:
    """A random view of each image of uint8 (N, H, W, C), C = 1 or 3, sides of at least 8 pixels.

    ``positions`` says which part of the global batch these images are; without it they are all of it.
    """
    check_view_name(name)
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        raise ValueError("images must be uint8 of shape (N, H, W, 1) or (N, H, W, 3)")
    first, end = (0, len(images)) if positions is None else (positions.start or 0, positions.stop)
    if end - first != len(images):
        raise ValueError("positions must name one place in the global batch per image")
    view = VIEWS[_kind(name)]
    draws = uniform_table(seed, step, stream, name, end, view.columns(config))
    return tensor(view.apply(from_tensor(images.contiguous()), draws[first:].numpy(), config))


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(images / 255 - mean) / std per channel: uint8 (N, H, W, C) to float (N, C, H, W), stored channels last."""
    n, height, width, channels = images.shape
    if len(mean) != channels or len(std) != channels:
        raise ValueError("mean and std must have one number per channel")
    dtype = torch.get_default_dtype()
    # Whole rows at once: a loop whose innermost length is three channels is slow.
    shift = torch.tensor(mean, dtype=dtype, device=images.device).mul(255).repeat(width)
    scale = torch.tensor(std, dtype=dtype, device=images.device).mul(255).repeat(width)
    rows = images.reshape(n, height, width * channels).to(dtype).sub_(shift).div_(scale)
    return rows.view(n, height, width, channels).permute(0, 3, 1, 2)
