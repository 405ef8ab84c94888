"""How an image of any shape becomes a small square."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image


@dataclass(frozen=True)
class Fit:
    """The filter; whether the longer side is squeezed, or cropped to a square first; whether a large JPEG may be
    decoded at a coarser scale, which is faster and not quite the same."""

    resample: Image.Resampling = Image.Resampling.BILINEAR
    squeeze: bool = False
    coarse: bool = True

    def __call__(self, image: Image.Image, size: int) -> Image.Image:
        """Exactly the pixels themselves where nothing is to be scaled."""
        if self.squeeze:
            return image.resize((size, size), self.resample)
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        return image.resize((size, size), self.resample, box=(left, top, left + side, top + side))


COVER = Fit()
"""For images of one's own, and for all that is scaled without a rule of its own."""
