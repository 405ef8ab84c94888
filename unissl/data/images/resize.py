"""How an image of any shape becomes a small square."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from PIL import Image


class Resize(Protocol):
    """A rule. Its picture is ``size`` high; one that is no square shows several squares side by side."""

    @property
    def coarse(self) -> bool:
        """Whether a large JPEG may be decoded at a coarser scale, which is faster and not quite the same."""

    def __call__(self, image: Image.Image, size: int) -> Image.Image: ...


@dataclass(frozen=True)
class CenterCrop:
    """The filter; whether the longer side is squeezed, or cropped to a square first; how much of the side of that
    square is shown, in its middle."""

    resample: Image.Resampling = Image.Resampling.BILINEAR
    squeeze: bool = False
    coarse: bool = True
    middle: float = 1.0

    def __call__(self, image: Image.Image, size: int) -> Image.Image:
        """Exactly the pixels themselves where nothing is to be scaled."""
        if self.squeeze:
            return image.resize((size, size), self.resample)
        side = self.middle * min(image.size)
        left, top = (image.width - side) / 2, (image.height - side) / 2
        if self.middle == 1:
            left, top = left // 1, top // 1
        return image.resize((size, size), self.resample, box=(left, top, left + side, top + side))


@dataclass(frozen=True)
class Letterbox:
    """All of the image, its longer side scaled to that of the square, with a grey margin beside it."""

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
    """Several squares of an image that is decoded once."""

    fits: tuple[Resize, ...]
    coarse: bool = True

    def __call__(self, image: Image.Image, size: int) -> Image.Image:
        row = Image.new(image.mode, (size * len(self.fits), size))
        for place, fit in enumerate(self.fits):
            row.paste(fit(image, size), (place * size, 0))
        return row


GREY = 127
CENTER_CROP = CenterCrop()
"""For images of one's own, and for all that is scaled without a rule of its own."""
