"""Every operation equals Pillow in every byte."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from unissl.augment import on_cpu
from unissl.augment.geometry import window
from unissl.augment.levels import _stretch_tables
from unissl.augment.randaugment import OPERATIONS, Operation, apply, rectangles

ByPillow = Callable[[str, Tensor, list[float]], Tensor]
Pictures = Callable[..., Tensor]
PER_SHAPE = 90
"""Pictures per shape; with 7 shapes each operation sees 630 pictures and magnitudes."""


def by_loop(operation: Operation, images: Tensor, magnitudes: Tensor) -> Tensor:
    """The way of the CPU; what it does before and after the operation is left empty."""
    n, height, width, _ = images.shape
    zero = np.zeros(n, np.int64)
    everything = window((height, width), zero, zero, zero.astype(bool), 0)
    nothing = rectangles(np.zeros((n, 3)), 0.0, height, width)
    choice = np.full((n, 1), OPERATIONS.index(operation))
    return on_cpu.strong(images, everything, choice, magnitudes.numpy()[:, None], nothing)


def by_tensors(operation: Operation, images: Tensor, magnitudes: Tensor) -> Tensor:
    """The way of every other device, which a CPU can go as well."""
    return apply(operation, images, magnitudes.numpy())


WAYS = (by_loop, by_tensors)


def named(name: str) -> Operation:
    return next(operation for operation in OPERATIONS if operation.name == name)


def magnitudes_with_edges(operation: Operation, count: int) -> Tensor:
    """The ends of the range, just inside, and round numbers, each met by all kinds of pictures; then uniform ones."""
    edges = torch.tensor([0.0, 1.0, 0.5, 1 - 2**-53, 0.25], dtype=torch.float64).repeat(6)
    draws = torch.rand(count - len(edges), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return operation.low + (operation.high - operation.low) * torch.cat([edges, draws])


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_operation_equals_pillow(
    operation: Operation, shape: tuple[int, int, int], pictures: Pictures, by_pillow: ByPillow
) -> None:
    images = pictures(PER_SHAPE, *shape)
    magnitudes = magnitudes_with_edges(operation, PER_SHAPE)
    expected = by_pillow(operation.name, images, magnitudes.tolist())
    before = images.clone()
    for way in WAYS:
        assert torch.equal(way(operation, images, magnitudes), expected), way.__name__
    assert torch.equal(images, before), "the input was changed"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_operation_on_none_and_one(operation: Operation, pictures: Pictures) -> None:
    """A batch in which nobody, or only the last image, drew the operation."""
    images, magnitudes = pictures(6, 12, 9, 3), magnitudes_with_edges(operation, 30)[:6]
    for way in WAYS:
        assert torch.equal(way(operation, images[5:], magnitudes[5:]), way(operation, images, magnitudes)[5:])
        assert way(operation, images[:0], magnitudes[:0]).shape == (0, 12, 9, 3)


@pytest.mark.parametrize("name", ["Brightness", "Color", "Contrast", "Sharpness"])
@pytest.mark.parametrize("factor", [0.0, 1.0])
def test_enhancement_at_its_ends_equals_pillow(
    name: str, factor: float, pictures: Pictures, by_pillow: ByPillow
) -> None:
    images = pictures(12, 20, 12, 3)
    for way in WAYS:
        result = way(named(name), images, torch.full((12,), factor, dtype=torch.float64))
        assert torch.equal(result, by_pillow(name, images, [factor] * 12))


def test_solarize_and_posterize_at_every_level(by_pillow: ByPillow) -> None:
    every_level = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1)
    for name, levels in {"Solarize": torch.arange(0, 256.5, 0.5), "Posterize": torch.arange(4, 8.5, 0.25)}.items():
        images = every_level.repeat(len(levels), 1, 1, 1)
        for way in WAYS:
            result = way(named(name), images, levels.double())
            assert torch.equal(result, by_pillow(name, images, levels.tolist()))


def test_autocontrast_over_the_triangle_of_extremes() -> None:
    """The rounding in the tables of many darkest and brightest levels, against Pillow's formula in Python's floats."""
    tables = _stretch_tables(torch.device("cpu")).view(256, 256, 256)
    every_level = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1)
    for low in range(0, 256, 5):
        for high in range(low + 1, 256, 3):
            scale = 255.0 / (high - low)
            expected = [int(level * scale + -low * scale) for level in range(low, high + 1)]
            assert tables[low, high, low : high + 1].tolist() == expected
            within = by_loop(named("AutoContrast"), every_level.clamp(low, high), torch.zeros(1, dtype=torch.float64))
            assert within.view(-1)[low : high + 1].tolist() == expected


def test_translation_that_rounds_on_the_way(pictures: Pictures, by_pillow: ByPillow) -> None:
    """Just below a whole number, Pillow's running sum crosses it elsewhere than one addition per column would."""
    starts = [k - 40 * 2.0**-53 for k in range(-7, 5)]
    shares = [(start - 0.5) / 64 for start in starts]  # exact: 64 is a power of two
    images = pictures(12, 8, 64, 1)
    for way in WAYS:
        result = way(named("TranslateX"), images, torch.tensor(shares, dtype=torch.float64))
        assert torch.equal(result, by_pillow("TranslateX", images, shares))


def test_two_warps_are_not_one(pictures: Pictures) -> None:
    """Why warps are applied one after the other: rounding in between is part of the result."""
    images = pictures(6, 32, 32, 3)
    angle = torch.full((6,), 17.0, dtype=torch.float64)
    there_and_back = by_loop(named("Rotate"), by_loop(named("Rotate"), images, angle), -angle)
    middle = (slice(None), slice(10, 22), slice(10, 22))  # nothing of it leaves the image on the way
    assert not torch.equal(there_and_back[middle], images[middle])
