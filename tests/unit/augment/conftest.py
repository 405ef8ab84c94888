"""What the augmentation tests share: test pictures of many kinds, and Pillow as the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

Affine = tuple[float, float, float, float, float, float]


def affine(image: Image.Image, matrix: Affine) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "AutoContrast": lambda image, v: ImageOps.autocontrast(image),
    "Brightness": lambda image, v: ImageEnhance.Brightness(image).enhance(v),
    "Color": lambda image, v: ImageEnhance.Color(image).enhance(v),
    "Contrast": lambda image, v: ImageEnhance.Contrast(image).enhance(v),
    "Equalize": lambda image, v: ImageOps.equalize(image),
    "Identity": lambda image, v: image,
    "Posterize": lambda image, v: ImageOps.posterize(image, int(v)),
    "Rotate": lambda image, v: image.rotate(v),
    "Sharpness": lambda image, v: ImageEnhance.Sharpness(image).enhance(v),
    "ShearX": lambda image, v: affine(image, (1, v, 0, 0, 1, 0)),
    "ShearY": lambda image, v: affine(image, (1, 0, 0, v, 1, 0)),
    "Solarize": lambda image, v: ImageOps.solarize(image, v),  # type: ignore[arg-type]
    "TranslateX": lambda image, v: affine(image, (1, 0, v * image.width, 0, 1, 0)),
    "TranslateY": lambda image, v: affine(image, (1, 0, 0, 0, 1, v * image.height)),
}


def to_pillow(image: Tensor) -> Image.Image:
    array = image.numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def from_pillow(image: Image.Image) -> Tensor:
    array = np.array(image)
    return torch.from_numpy(array if array.ndim == 3 else array[:, :, None])


def make_pictures(count: int, height: int, width: int, channels: int, seed: int = 0) -> Tensor:
    """Noise, narrow noise, smooth waves, flat colour, few colours and a half-black picture, in turn."""
    rng = np.random.default_rng([seed, height, width, channels])
    shape = (height, width, channels)
    y, x = np.mgrid[0:height, 0:width]

    def picture(kind: int) -> Any:
        if kind == 0:
            return rng.integers(0, 256, shape)
        if kind == 1:
            low = rng.integers(0, 200)
            return rng.integers(low, low + rng.integers(1, 56), shape)
        if kind == 2:
            waves = [np.sin(x * rng.uniform(0, 0.5) + y * rng.uniform(0, 0.5)) for _ in range(channels)]
            return 127.5 + 127.5 * np.stack(waves, 2)
        if kind == 3:
            return np.broadcast_to(rng.integers(0, 256, channels), shape)
        if kind == 4:
            return rng.integers(0, 256, (3, channels))[rng.integers(0, 3, (height, width))]
        return rng.integers(0, 256, shape) * (x > width // 2)[:, :, None]

    return torch.from_numpy(np.stack([picture(i % 6) for i in range(count)]).astype(np.uint8))


SHAPES = [(32, 32, 3), (32, 32, 1), (8, 8, 3), (17, 40, 3), (35, 15, 1), (64, 48, 3), (28, 28, 1)]
"""Height, width, channels."""


@pytest.fixture
def pictures() -> Callable[..., Tensor]:
    return make_pictures


@pytest.fixture(params=SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def shape(request: pytest.FixtureRequest) -> tuple[int, int, int]:
    size: tuple[int, int, int] = request.param
    return size


@pytest.fixture
def by_pillow() -> Callable[[str, Tensor, list[float]], Tensor]:
    """A function (operation, images, magnitudes) -> images that asks Pillow image by image."""

    def apply(name: str, images: Tensor, magnitudes: list[float]) -> Tensor:
        done = [PILLOW[name](to_pillow(image), v) for image, v in zip(images, magnitudes, strict=True)]
        return torch.stack([from_pillow(image) for image in done])

    return apply
