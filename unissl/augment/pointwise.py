"""Operations that map each pixel by its own value: what Pillow does with a lookup table, bit for bit.

Every function takes planes, uint8 (n, C, H, W), and returns new ones. Magnitudes are float64 (n,) on the CPU.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def per_image(values: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """One number per image, shaped to broadcast over (n, C, H, W)."""
    return values.to(dtype).to(device).view(-1, 1, 1, 1)


def posterize(planes: Tensor, bits: Tensor) -> Tensor:
    """Keep the floor(bits) highest bits."""
    dropped = 2.0 ** (8 - bits.floor())
    return planes & per_image(256 - dropped, torch.uint8, planes.device)


def solarize(planes: Tensor, threshold: Tensor) -> Tensor:
    """Invert what is not below the threshold."""
    # A grey level is below a real threshold exactly when it is below its ceiling, which at 256 no longer fits a byte.
    bright = planes >= per_image(threshold.ceil(), torch.int16, planes.device)
    return planes ^ bright.to(torch.uint8).neg_()  # -1 is 255 in a byte, and v ^ 255 = 255 - v


def autocontrast(planes: Tensor) -> Tensor:
    """Stretch each channel to the full range."""
    low, high = planes.amin((2, 3)).to(torch.int32), planes.amax((2, 3)).to(torch.int32)
    tables = _stretch_tables(planes.device).index_select(0, (256 * low + high).flatten())
    return _look_up(tables, _table_positions(planes, torch.int32)).view_as(planes)


def equalize(planes: Tensor) -> Tensor:
    """Flatten the histogram of each channel."""
    n, channels, height, width = planes.shape
    positions = _table_positions(planes, torch.int64)
    one = torch.ones(1, dtype=torch.int32, device=planes.device)
    counts = torch.zeros(n * channels * 256, dtype=torch.int32, device=planes.device)
    counts = counts.scatter_add_(0, positions, one.expand(len(positions))).view(n, channels, 256)

    brightest = planes.amax((2, 3)).to(torch.int64).unsqueeze(2)
    step = (height * width - counts.gather(2, brightest)) // 255
    darker = counts.cumsum(2, dtype=torch.int32).sub_(counts)
    tables = ((darker + step // 2) // step.clamp(min=1)).clamp_(max=255)
    # Where fewer than 255 pixels are darker than the brightest ones, step is 0 and Pillow leaves the channel alone.
    same = torch.arange(256, dtype=torch.int32, device=planes.device)
    return _look_up(torch.where(step > 0, tables, same).to(torch.uint8), positions).view_as(planes)


def _table_positions(planes: Tensor, dtype: torch.dtype) -> Tensor:
    """Where each pixel finds itself in a flattened set of tables (n, C, 256)."""
    n, channels, _, _ = planes.shape
    first = torch.arange(0, n * channels * 256, 256, dtype=dtype, device=planes.device)
    return planes.to(dtype).add_(first.view(n, channels, 1, 1)).flatten()


def _look_up(tables: Tensor, positions: Tensor) -> Tensor:
    return tables.flatten().index_select(0, positions)


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
