"""Operations that fade an image into a poorer version of itself, bit for bit as Pillow's ImageEnhance.

The fade works in float32 with one rounding for the product and one for the sum, then cuts off the fraction. Pillow does
the same where its compiler does not fuse the two (the x86-64 wheels; a fused build can differ by one grey level).
The poorer versions are whole numbers, and every sum before the fade is exact.

Every function takes images, uint8 (n, H, W, C), and a factor in [0, 1] for each, on the CPU; 1 changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

LUMA = (19595, 38470, 7471)
"""Shares of red, green and blue in grey, in 1/65536."""


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Fade from black."""
    return _fade(images.new_zeros(1), images, factor)


def color(images: Tensor, factor: Tensor) -> Tensor:
    """Fade from grey; a grey image stays as it is."""
    return _fade(_luma(images), images, factor) if images.shape[3] == 3 else images


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Fade from the flat image of the mean grey level."""
    grey = _luma(images)
    pixels = grey[0].numel() if len(grey) else 1
    mean = (2 * grey.sum((1, 2, 3), keepdim=True) + pixels) // (2 * pixels)  # nearest, halves up
    return _fade(mean, images, factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Fade from the smoothed image; the border, which Pillow does not smooth, stays."""
    image = images.to(torch.int16)
    across = image[:, :, :-2] + image[:, :, 1:-1] + image[:, :, 2:]
    total = across[:, :-2] + across[:, 1:-1] + across[:, 2:] + 4 * image[:, 1:-1, 1:-1]
    poor = images.clone()
    poor[:, 1:-1, 1:-1] = (total + 6) // 13  # weights 1 around 5, rounded; no quotient lies on a half
    return _fade(poor, images, factor)  # the border fades from itself, which changes nothing


def _luma(images: Tensor) -> Tensor:
    """Grey level of each pixel, int32 (n, H, W, 1), rounded as Pillow's conversion to mode L."""
    levels = images.to(torch.int32)
    if images.shape[3] == 1:
        return levels
    red, green, blue = (channel * share for channel, share in zip(levels.unbind(3), LUMA, strict=True))
    return ((red + green + blue + 32768) >> 16)[..., None]


def _fade(poor: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    start, share = poor.to(torch.float32), factor.to(torch.float32)[:, None, None, None].to(images.device)
    return (images.to(torch.float32) - start).mul_(share).add_(start).to(torch.uint8)
