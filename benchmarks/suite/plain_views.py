"""Plain augmentation: Pillow, one image after the other.

Weak views are a random crop of the image padded by reflection and a random flip. Strong views are the same, then three
RandAugment operations drawn with replacement and a cutout.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import Tensor

PILImage = Image.Image
Bytes = npt.NDArray[np.uint8]
PAD, SLOTS, CUTOUT = 4, 3, 0.5
GREY = (125, 123, 114)


def _affine(image: PILImage, *matrix: float) -> PILImage:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


OPERATIONS: dict[str, tuple[float, float, Callable[[PILImage, float], PILImage]]] = {
    "AutoContrast": (0, 0, lambda image, _: ImageOps.autocontrast(image)),
    "Brightness": (0.05, 0.95, lambda image, v: ImageEnhance.Brightness(image).enhance(v)),
    "Color": (0.05, 0.95, lambda image, v: ImageEnhance.Color(image).enhance(v)),
    "Contrast": (0.05, 0.95, lambda image, v: ImageEnhance.Contrast(image).enhance(v)),
    "Equalize": (0, 0, lambda image, _: ImageOps.equalize(image)),
    "Identity": (0, 0, lambda image, _: image),
    "Posterize": (4, 8, lambda image, v: ImageOps.posterize(image, int(v))),
    "Rotate": (-30, 30, lambda image, v: image.rotate(v)),
    "Sharpness": (0.05, 0.95, lambda image, v: ImageEnhance.Sharpness(image).enhance(v)),
    "ShearX": (-0.3, 0.3, lambda image, v: _affine(image, 1, v, 0, 0, 1, 0)),
    "ShearY": (-0.3, 0.3, lambda image, v: _affine(image, 1, 0, 0, v, 1, 0)),
    "Solarize": (0, 256, lambda image, v: ImageOps.solarize(image, int(v))),
    "TranslateX": (-0.3, 0.3, lambda image, v: _affine(image, 1, 0, v * image.width, 0, 1, 0)),
    "TranslateY": (-0.3, 0.3, lambda image, v: _affine(image, 1, 0, 0, 0, 1, v * image.height)),
}
"""Name -> range of magnitudes, operation."""


def weak(pixels: Bytes, random: Random) -> PILImage:
    height, width = pixels.shape[:2]
    padded = np.pad(pixels, ((PAD, PAD), (PAD, PAD), (0, 0)), mode="reflect")
    top, left = random.randint(0, 2 * PAD), random.randint(0, 2 * PAD)
    image = Image.fromarray(padded).crop((left, top, left + width, top + height))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def strong(pixels: Bytes, random: Random) -> PILImage:
    image = weak(pixels, random)
    for low, high, operation in random.choices(list(OPERATIONS.values()), k=SLOTS):
        image = operation(image, low + (high - low) * random.random())
    return cutout(image, random)


def cutout(image: PILImage, random: Random) -> PILImage:
    """A grey square of up to half the width, cut at the image's edge."""
    side = random.uniform(0, CUTOUT) * image.width
    left = int(max(0, random.uniform(1, image.width) - side / 2))
    top = int(max(0, random.uniform(1, image.height) - side / 2))
    corners = (left, top, min(image.width, left + side), min(image.height, top + side))
    image = image.copy()
    ImageDraw.Draw(image).rectangle(corners, GREY)
    return image


VIEWS = {"weak": weak, "strong": strong}


def to_tensor(image: PILImage, mean: Tensor, std: Tensor) -> Tensor:
    """float (3, H, W), normalised; ``mean`` and ``std`` are (3, 1, 1)."""
    floats = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().to(mean.dtype).div(255)
    return (floats - mean) / std


def plain_batch(view: str, images: Bytes, mean: Tensor, std: Tensor, random: Random) -> Tensor:
    """A view of every image of (n, H, W, 3) as floats (n, 3, H, W)."""
    return torch.stack([to_tensor(VIEWS[view](pixels, random), mean, std) for pixels in images])


def plain_bytes(view: str, images: Bytes, random: Random) -> Bytes:
    """A view of every image of (n, H, W, 3), as bytes."""
    return np.stack([np.asarray(VIEWS[view](pixels, random)) for pixels in images])
