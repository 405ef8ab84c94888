"""Resize rules: from an image of any shape to a small square; and decoded images at another size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from PIL import Image

from unissl.types import Pixels


class Resize(Protocol):
    """A resize rule. Its result is ``size`` high; a wider one is several squares side by side."""

    @property
    def coarse(self) -> bool:
        """Whether a large JPEG may be decoded at a coarser scale, which is faster and not quite the same."""

    def __call__(self, image: Image.Image, size: int) -> Image.Image: ...


@dataclass(frozen=True)
class CenterCrop:
    """Crop the centre square and scale it with ``resample``; ``squeeze`` scales the whole image to a square instead,
    and ``middle`` is the fraction of the square's side that is cropped."""

    resample: Image.Resampling = Image.Resampling.BILINEAR
    squeeze: bool = False
    coarse: bool = True
    middle: float = 1.0

    def __call__(self, image: Image.Image, size: int) -> Image.Image:
        """Returns the pixels unchanged if the crop has the right size already."""
        if self.squeeze:
            return image.resize((size, size), self.resample)
        side = self.middle * min(image.size)
        left, top = (image.width - side) / 2, (image.height - side) / 2
        if self.middle == 1:
            left, top = left // 1, top // 1
        return image.resize((size, size), self.resample, box=(left, top, left + side, top + side))


@dataclass(frozen=True)
class Letterbox:
    """The whole image, its longer side scaled to the side of the square, with grey padding."""

    coarse: bool = True

    def __call__(self, image: Image.Image, size: int) -> Image.Image:
        longer = max(image.size)
        width, height = (max(1, round(side * size / longer)) for side in image.size)
        square = Image.new(image.mode, (size, size), GREY if image.mode == "L" else (GREY,) * 3)
        small = image.resize((width, height), Image.Resampling.BILINEAR)
        square.paste(small, ((size - width) // 2, (size - height) // 2))
        return square


@dataclass(frozen=True)
class MultiCrop:
    """Several squares, side by side, of an image that is decoded once."""

    fits: tuple[Resize, ...]
    coarse: bool = True

    def __call__(self, image: Image.Image, size: int) -> Image.Image:
        row = Image.new(image.mode, (size * len(self.fits), size))
        for number, fit in enumerate(self.fits):
            row.paste(fit(image, size), (number * size, 0))
        return row


GREY = 127
CENTER_CROP = CenterCrop()
"""The default rule."""


def scale_arrays(images: Pixels, size: int | None) -> Pixels:
    """Decoded images (n, h, w, c) at another size, by the same rule as files; None leaves them alone."""
    if size is None or images.shape[1:3] == (size, size):
        return images
    scaled = np.empty((len(images), size, size, images.shape[3]), dtype=np.uint8)
    for row, image in enumerate(images):
        scaled[row] = np.asarray(CENTER_CROP(to_pil(image), size)).reshape(scaled.shape[1:])
    return scaled


def to_pil(pixels: Pixels) -> Image.Image:
    """An image (h, w, channels); one channel is grey."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
