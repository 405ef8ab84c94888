"""Named random views of a batch, and the step from bytes to the numbers a network takes.

A view depends on (seed, step, stream, view, position in the global batch) alone: its random numbers are drawn on
the CPU and applied on whatever device holds the images. Digits at the end of a name ask for a further, independent
view of the same kind: ``strong2`` is made as ``strong`` is, from other random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from unissl.augment import geometry, on_cpu
from unissl.augment.geometry import Floats
from unissl.augment.randaugment import choose, cutout, randaugment, rectangles
from unissl.config import Settings
from unissl.errors import UserError
from unissl.ops.keyed_random import uniform_table

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
    """Side of the square that views show of the images, at a random position or, without augmentation, in the centre.
    By default the size of the images, so that only the border leaves room for a shift."""
    randaugment_n: int = Field(default=3, ge=0)
    """RandAugment operations per strong view."""
    geometry_scale: float = Field(default=1.0, gt=0.0, le=1.0)
    """Multiplies the ranges of shear, translate and rotate; less than 1 where a strong warp changes the class."""
    cutout_max: float = Field(default=0.5, ge=0.0, le=1.0)
    """Largest side of the grey square in strong views, as a share of the width; 0 is off."""
    feature_dropout: float = Field(default=0.5, ge=0.0, lt=1.0)
    """For features: share of the entries that a strong view lacks."""
    labelled_feature_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """For features: share of the entries that the weak view of a labelled image lacks. There are few of these, and
    without it a network soon memorises them."""
    second_view_dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """For features: share of the entries that a second weak view (``flip`` of SSB, ``weak2`` of CaliMatch) lacks, since
    without it the two would be the same numbers and their consistency nothing to learn."""
    cached_views: int = Field(default=3, ge=0)
    """For features of a frozen backbone: strongly augmented views of each image that are cached."""


def _none(images: Tensor, draws: Floats, config: AugmentConfig) -> Tensor:
    """The images themselves, or their centre."""
    top, left = _centre(images.shape[1:3], config)
    return images[:, top : top + config.crop, left : left + config.crop] if config.crop else images


def _flip(images: Tensor, draws: Floats, config: AugmentConfig) -> Tensor:
    """Random flip alone."""
    top, left = (np.full(len(images), start) for start in _centre(images.shape[1:3], config))
    flip = (draws[:, 0] < 0.5) & config.flip
    return _crop(images, geometry.window(_size(images), top, left, flip, 0, config.crop))


def _weak(images: Tensor, draws: Floats, config: AugmentConfig) -> Tensor:
    """Random crop of the reflect-padded image, random flip."""
    return _crop(images, _random_window(images, draws, config))


def _strong(images: Tensor, draws: Floats, config: AugmentConfig) -> Tensor:
    """An independent crop and flip, RandAugment, then cutout."""
    crop_window = _random_window(images, draws, config)
    height, width = crop_window.rows.shape[1], crop_window.columns.shape[1]
    choice, magnitudes = choose(draws[:, CROP_DRAWS:-CUTOUT_DRAWS], config.geometry_scale)
    filled = rectangles(draws[:, -CUTOUT_DRAWS:], config.cutout_max, height, width)
    if _compiled(images):
        return on_cpu.strong(images, crop_window, choice, magnitudes, filled)
    return cutout(randaugment(_crop(images, crop_window), choice, magnitudes), filled)


def _crop(images: Tensor, crop_window: geometry.Window) -> Tensor:
    return on_cpu.crop(images, crop_window) if _compiled(images) else geometry.crop(images, crop_window)


def _compiled(images: Tensor) -> bool:
    return images.device.type == "cpu" and on_cpu.has_compiler()


def _random_window(images: Tensor, draws: Floats, config: AugmentConfig) -> geometry.Window:
    """Each image is cropped and flipped by its own row of ``draws``."""
    size = _size(images)
    if config.pad >= min(size):
        raise UserError(f"Setting 'augment.pad' is {config.pad}; set it below the images' side of {min(size)} pixels.")
    starts = [_room(length, config.pad, config.crop or length) + 1 for length in size]
    top, left = (draws[:, :2] * starts).astype(np.int64).T
    return geometry.window(size, top, left, (draws[:, 2] < 0.5) & config.flip, config.pad, config.crop)


def _size(images: Tensor) -> tuple[int, int]:
    return images.shape[1], images.shape[2]


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
    """A kind of view: random numbers per image, and the operation that uses them."""

    columns: Callable[[AugmentConfig], int]
    apply: Callable[[Tensor, Floats, AugmentConfig], Tensor]


VIEWS = {
    "none": View(lambda config: 0, _none),
    "flip": View(lambda config: 1, _flip),
    "weak": View(lambda config: CROP_DRAWS, _weak),
    "strong": View(lambda config: CROP_DRAWS + 2 * config.randaugment_n + CUTOUT_DRAWS, _strong),
}


def check_view_name(name: str) -> None:
    """Raise ValueError unless the name, without digits at its end, is one of ``VIEWS``."""
    if _kind(name) not in VIEWS:
        raise ValueError(f"unknown view {name!r}; known: {', '.join(VIEWS)}, each with optional digits after it")


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

    ``positions`` is the part of the global batch that these images are; without it they are all of it.
    """
    check_view_name(name)
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        raise ValueError("images must be uint8 of shape (N, H, W, 1) or (N, H, W, 3)")
    first, end = (0, len(images)) if positions is None else (positions.start or 0, positions.stop)
    if end - first != len(images):
        raise ValueError("positions must name one position in the global batch per image")
    draws = uniform_table(seed, step, stream, name, end, view_draws(name, config))
    return apply_view(name, images, config, draws[first:].numpy())


def view_draws(name: str, config: AugmentConfig) -> int:
    """Random numbers per image that a view takes."""
    return VIEWS[_kind(name)].columns(config)


def apply_view(name: str, images: Tensor, config: AugmentConfig, draws: Floats) -> Tensor:
    """A view of each image of uint8 (N, H, W, C) from given random numbers (N, ``view_draws``) in [0, 1)."""
    return VIEWS[_kind(name)].apply(images.contiguous(), draws, config)


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
