"""Operations that map each pixel by its own value: what Pillow does with a lookup table, bit for bit.

Every function takes images, uint8 (n, H, W, C), and those that have a magnitude one for each image, on the CPU.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


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
