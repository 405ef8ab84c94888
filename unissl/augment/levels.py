"""Operations that change the levels of pixels, bit for bit as Pillow.

Every function takes images, uint8 (n, H, W, C), and those that have a magnitude one for each image, on the CPU.

Some fade an image into a poorer version of itself, by a factor in [0, 1]; 1 changes nothing. The fade works in float32
with one rounding for the product and one for the sum, then cuts off the fraction. Pillow does the same where its
compiler does not fuse the two (the x86-64 wheels; a fused build can differ by one grey level). The poorer versions are
whole numbers, and every sum before the fade is exact.
"""

from __future__ import annotations

from functools import cache

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


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the floor(bits) highest bits."""
    return images & _per_image(256 - 2.0 ** (8 - bits.floor()), torch.uint8, images)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert what is not below the threshold."""
    # A grey level is below a real threshold exactly when it is below its ceiling, which at 256 no longer fits a byte.
    return torch.where(images.to(torch.int16) < _per_image(threshold.ceil(), torch.int16, images), images, 255 - images)


def _per_image(values: Tensor, dtype: torch.dtype, images: Tensor) -> Tensor:
    return values.to(dtype)[:, None, None, None].to(images.device)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to the full range."""
    low, high = images.amin((1, 2)).to(torch.int32), images.amax((1, 2)).to(torch.int32)
    return _look_up(_stretch_tables(images.device), images, low * 256 + high)


def equalize(images: Tensor) -> Tensor:
    """Flatten the histogram of each channel."""
    n, height, width, channels = images.shape
    table = torch.arange(n * channels, dtype=torch.int32, device=images.device).view(n, channels)
    positions = _positions(images, table).view(-1).to(torch.int64)
    # Not bincount, which would wait for the device to learn how long its result is.
    one = torch.ones(1, dtype=torch.int32, device=images.device).expand(len(positions))
    counts = torch.zeros(n * channels * 256, dtype=torch.int32, device=images.device).scatter_add_(0, positions, one)
    return _look_up(_flattening_tables(counts.view(n, channels, 256), height * width), images, table)


def _flattening_tables(counts: Tensor, pixels: int) -> Tensor:
    """Tables of Equalize, uint8 (n, C, 256), by how many of the pixels have each level."""
    upto = counts.cumsum(2, dtype=torch.int32)
    step = (upto * (upto < pixels)).amax(2, keepdim=True) // 255
    table = (upto - counts + step // 2) // step.clamp(min=1)
    # Where fewer than 255 pixels are darker than the brightest ones, step is 0 and Pillow leaves the channel alone.
    unchanged = torch.arange(256, dtype=torch.int32, device=counts.device)
    return torch.where(step > 0, table.clamp(max=255), unchanged).to(torch.uint8)


def _look_up(tables: Tensor, images: Tensor, table: Tensor) -> Tensor:
    """Each level's entry in its table of 256, given the number of the ``table``, int32 (n, C)."""
    return tables.view(-1).index_select(0, _positions(images, table).view(-1)).view(images.shape)


def _positions(images: Tensor, table: Tensor) -> Tensor:
    return images.to(torch.int32) + (table * 256)[:, None, None]


@cache
def _stretch_tables(device: torch.device) -> Tensor:
    """The table of AutoContrast for every darkest and brightest level, uint8 (256 * 256, 256).

    Pillow rounds in float64, which not every device has; so all tables are made once, on the CPU (16 MB).
    """
    level = torch.arange(256, dtype=torch.float64)
    high, white = level.unsqueeze(1), torch.tensor(255.0, dtype=torch.float64)
    tables = []
    for low in range(256):
        scale = white / (high - low)  # a plain 255.0 would be multiplied by a reciprocal, which rounds twice
        stretched = (level * scale - low * scale).clamp(0, 255)
        tables.append(torch.where(high > low, stretched, level).to(torch.uint8))
    return torch.cat(tables).to(device)
