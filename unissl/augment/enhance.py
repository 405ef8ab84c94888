"""Operations that fade an image into a poorer version of itself, bit for bit as Pillow's ImageEnhance.

The fade works in float32 with one rounding for the product and one for the sum, then cuts off the fraction. Pillow does
the same where its compiler does not fuse the two (the x86-64 wheels; a fused build can differ by one grey level).
The poorer versions are whole numbers, and float32 holds every intermediate sum exactly.

Every function takes planes, uint8 (n, C, H, W), and a factor in [0, 1], float64 (n,) on the CPU; 1 changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unissl.augment.pointwise import per_image

LUMA = (19595, 38470, 7471)
"""Shares of red, green and blue in grey, in 1/65536."""


def brightness(planes: Tensor, factor: Tensor) -> Tensor:
    """Fade from black."""
    return planes.to(torch.float32).mul_(per_image(factor, torch.float32, planes.device)).to(torch.uint8)


def color(planes: Tensor, factor: Tensor) -> Tensor:
    """Fade from grey; a grey image stays as it is."""
    if planes.shape[1] == 1:
        return planes.clone()
    image = planes.to(torch.float32)
    return _fade(_luma(image), image, factor)


def contrast(planes: Tensor, factor: Tensor) -> Tensor:
    """Fade from the flat image of the mean grey level."""
    image = planes.to(torch.float32)
    pixels = planes.shape[2] * planes.shape[3]
    total = _luma(image).to(torch.int32).sum((1, 2, 3), keepdim=True)
    mean = (2 * total + pixels) // (2 * pixels)  # nearest, halves up
    return _fade(mean.to(torch.float32), image, factor)


def sharpness(planes: Tensor, factor: Tensor) -> Tensor:
    """Fade from the smoothed image; the border, which Pillow does not smooth, stays."""
    n, channels, _, width = planes.shape
    image = planes.to(torch.float32).flatten(2)
    # On flattened planes the neighbours are 1 and W apart. Sums that run over a border are wrong, and not kept.
    across = (image[..., :-2] + image[..., 1:-1]).add_(image[..., 2:])
    square = (across[..., : -2 * width] + across[..., width:-width]).add_(across[..., 2 * width :])
    inner = slice(width + 1, -width - 1)
    # Weights 1 around 5, divided by 13 and rounded. No sum lies on a half, so any way to round gives the same.
    smooth = square.add_(image[..., inner], alpha=4).add_(6.5).div_(13).floor_()
    result = planes.clone()
    faded = _fade(smooth.unsqueeze(2), image[..., inner].unsqueeze(2), factor)
    result.view(n, channels, -1)[..., inner] = faded.squeeze(2)
    result[..., 0], result[..., -1] = planes[..., 0], planes[..., -1]
    return result


def _luma(image: Tensor) -> Tensor:
    """Grey level of each pixel, (n, 1, H, W), rounded as Pillow's conversion to mode L."""
    if image.shape[1] == 1:
        return image
    red, green, blue = image.unsqueeze(2).unbind(1)
    weighted = (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])
    return weighted.add_(32768).div_(65536).floor_()


def _fade(poor: Tensor, image: Tensor, factor: Tensor) -> Tensor:
    return (image - poor).mul_(per_image(factor, torch.float32, image.device)).add_(poor).to(torch.uint8)
