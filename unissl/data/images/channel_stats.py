"""Mean and standard deviation per channel, the constants that images are normalised with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_IMAGES = 10_000
CHUNK = 256

Moments = tuple[tuple[float, ...], tuple[float, ...]]


def channel_mean_std(images: npt.NDArray[np.uint8]) -> Moments:
    """Mean and std of each channel in 0..1 units, from at most 10,000 evenly spaced images, rounded to 4 digits.

    Pixel values are counted, not summed, so the result is exact and the same for every chunking and machine.
    A channel that never changes gets std 1, since nothing could be divided by 0.
    """
    rows = np.linspace(0, len(images) - 1, min(len(images), MAX_IMAGES)).astype(np.int64)
    channels = images.shape[-1]
    counts = np.zeros((channels, 256), dtype=np.int64)
    for start in range(0, len(rows), CHUNK):
        block = images[rows[start : start + CHUNK]]
        for c in range(channels):
            counts[c] += np.bincount(block[..., c].ravel(), minlength=256)
    values = np.arange(256) / 255
    share = counts / counts.sum(axis=1, keepdims=True)
    mean = share @ values
    std = np.sqrt((share * (values - mean[:, None]) ** 2).sum(axis=1))
    return tuple(round(float(m), 4) for m in mean), tuple(round(float(s), 4) or 1.0 for s in std)
