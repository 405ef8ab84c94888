"""Operations that map each pixel by its own value: what Pillow does with a lookup table, bit for bit.

Every function changes images, uint8 (n, H, W, C), in place. Arithmetic on many bytes at once is faster than looking
up each of them, so only the two operations that depend on the picture make tables.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from unissl.augment.arrays import (
    Array,
    Floats,
    cast,
    count,
    extremes,
    largest,
    per_image,
    running_sum,
    send,
    take,
    tensor,
)


def posterize(images: Array, bits: Floats) -> None:
    """Keep the floor(bits) highest bits."""
    levels = images.reshape(len(images), -1)
    levels &= per_image(256 - 2.0 ** (8 - np.floor(bits)), "uint8", images)


def solarize(images: Array, threshold: Floats) -> None:
    """Invert what is not below the threshold."""
    # A grey level is below a real threshold exactly when it is below its ceiling, which at 256 no longer fits a byte.
    first = np.ceil(threshold)
    levels = images.reshape(len(images), -1)
    bright = levels >= per_image(np.minimum(first, 255), "uint8", images)
    levels ^= bright * per_image(255 * (first < 256), "uint8", images)  # v ^ 255 = 255 - v


def autocontrast(images: Array) -> None:
    """Stretch each channel to the full range."""
    n, height, width, channels = images.shape
    darkest, brightest = extremes(images.reshape(n, height, -1))
    low, _ = extremes(darkest.reshape(n, width, channels))
    _, high = extremes(brightest.reshape(n, width, channels))
    table = cast(low, "int32") * 256 + cast(high, "int32")
    images[:] = take(_stretch_tables(tensor(images).device), _positions(images, table))


def equalize(images: Array) -> None:
    """Flatten the histogram of each channel; exact for images of fewer than 2^24 pixels."""
    n, height, width, channels = images.shape
    positions = _positions(images, send(np.arange(n * channels, dtype=np.int32).reshape(n, channels), images))
    counts = count(positions, n * channels * 256).reshape(n, channels, 256)
    images[:] = take(_flattening_tables(counts, height * width), positions)


def _flattening_tables(counts: Array, pixels: int) -> Array:
    """Tables of Equalize, uint8 (n, C, 256), by how many of the pixels have each level."""
    upto = running_sum(counts)
    below_brightest = largest(upto * (upto < pixels))
    step = below_brightest // 255
    darker = upto - counts
    darker += step // 2
    table = cast(darker, "float32")
    table /= cast(step + (step == 0), "float32")
    # Where fewer than 255 pixels are darker than the brightest ones, step is 0 and Pillow leaves the channel alone.
    table *= cast(step > 0, "float32")
    table += send(np.arange(256, dtype=np.float32), counts) * cast(step == 0, "float32")
    return cast(table.clip(0, 255), "uint8")


def _positions(images: Array, table: Array) -> Array:
    """Where each level finds itself in tables of 256 entries, given the number of the ``table``, int32 (n, C)."""
    n, height, width, channels = images.shape
    positions = cast(images, "int32")
    rows = positions.reshape(n, height, -1)  # the inner loop goes over whole rows, since one over channels is slow
    rows += (table * 256)[:, send(np.arange(width * channels) % channels, images)][:, None]
    return positions


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
