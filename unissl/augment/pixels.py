"""Pixels in one piece: a colour pixel as one number instead of three, so that it moves in one step.

Fetching scattered numbers costs by how many they are and hardly by their size. A colour pixel is an int32 of the
bytes red, green, blue and one that means nothing; a grey pixel is its own uint8.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor
from torch.nn.functional import pad

from unissl.augment.arrays import Array


def pack(images: Array, frame: int = 0) -> Array:
    """Pixels (n, H, W) of images uint8 (n, H, W, C), inside a black frame of so many pixels if wanted."""
    n, height, width, channels = images.shape
    if isinstance(images, Tensor):
        moved = pad(images, (0, 1)).view(torch.int32)[..., 0] if channels == 3 else images[..., 0]
        return pad(moved, (frame, frame, frame, frame))
    new = np.zeros if frame else np.empty
    whole = new((n, height + 2 * frame, width + 2 * frame), np.int32 if channels == 3 else np.uint8)
    pixels = whole[:, frame : frame + height, frame : frame + width]
    if channels == 1:
        pixels[:] = images[..., 0]
    elif n:
        words = _words(images)
        pixels[:-1] = words[:-1]
        pixels[-1, :-1] = words[-1, :-1]
        pixels[-1, -1, :-1] = words[-1, -1, :-1]
        pixels[-1, -1, -1:].view(np.uint8)[:3] = images[-1, -1, -1]
    return whole


def unpack(pixels: Array, out: Array) -> None:
    """Write pixels (n, H, W) into images (n, H, W, C)."""
    channels = out.shape[3]
    if channels == 1:
        out[..., 0] = pixels
    elif isinstance(pixels, Tensor):
        out[:] = pixels[..., None].view(torch.uint8)[..., :3]
    elif len(pixels):
        words = _words(out).reshape(-1)
        words[:-1] = pixels.reshape(-1)[:-1]  # in order: the next pixel's red goes over the fourth byte of this one
        out[-1, -1, -1] = pixels[-1, -1, -1:].view(np.uint8)[:3]


def _words(images: Array) -> Array:
    """Each pixel and the byte after it as an int32, (n, H, W), sharing memory; the last one must not be touched.

    Copies from and to such a view are several times faster than copies with an inner loop over three bytes.
    """
    first = images.reshape(-1)[:4].view(np.int32)
    return as_strided(first, images.shape[:3], images.strides[:3])
