"""The plain way's views are what the protocol says, so that both sides of the benchmark do the same work."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image
from suite import plain_views
from suite.cases import MEAN, STD, random_images
from suite.plain_views import GREY, OPERATIONS, cutout, plain_batch, plain_bytes, strong, to_tensor, weak

from unissl.augment import normalise
from unissl.augment.randaugment import OPERATIONS as OUR_OPERATIONS


class Numbers(Random):
    """Hands out the given numbers one after the other."""

    def __init__(self, *numbers: float) -> None:
        super().__init__(0)
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)

    def randint(self, low: int, high: int) -> int:
        return low + int(self.numbers.pop(0) * (high - low + 1))


def test_same_operations_and_ranges_as_ours() -> None:
    ours = {operation.name: (operation.low, operation.high) for operation in OUR_OPERATIONS}
    assert {name: (low, high) for name, (low, high, _) in OPERATIONS.items()} == ours


@pytest.mark.parametrize(("top", "left", "flip"), [(0, 0, False), (8, 3, True), (4, 4, False)])
def test_weak_view_is_a_crop_of_the_padded_image(top: int, left: int, flip: bool) -> None:
    (pixels,) = random_images(1, 32)
    view = np.asarray(weak(pixels, Numbers(top / 9 + 0.01, left / 9 + 0.01, 0.2 if flip else 0.8)))
    padded = np.pad(pixels, ((4, 4), (4, 4), (0, 0)), mode="reflect")[top : top + 32, left : left + 32]
    assert np.array_equal(view, padded[:, ::-1] if flip else padded)


def test_strong_view_applies_three_operations_and_a_cutout(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name, (low, high, _) in list(OPERATIONS.items()):

        def note(image: Image.Image, v: float, name: str = name, low: float = low, high: float = high) -> Image.Image:
            assert low <= v <= high
            calls.append(name)
            return image

        monkeypatch.setitem(OPERATIONS, name, (low, high, note))
    random, black = Random(1), np.zeros((32, 32, 3), dtype=np.uint8)
    for _ in range(400):
        view = np.asarray(strong(black, random))
        assert {tuple(pixel) for pixel in view.reshape(-1, 3).tolist()} <= {(0, 0, 0), GREY}
    assert len(calls) == 1200 and set(Counter(calls)) == set(OPERATIONS)


def test_cutout_is_the_rectangle_of_the_protocol() -> None:
    """Side 0.5 * 0.5 * 16 = 4, centre at 1 + 15 * 0.6 = 10 and 1 + 15 * 0 = 1: columns 8..12, rows 0..4."""
    view = np.asarray(cutout(Image.new("RGB", (16, 16)), Numbers(0.5, 0.6, 0.0)))
    grey = (view == np.array(GREY)).all(2)
    rows, columns = np.flatnonzero(grey.any(1)), np.flatnonzero(grey.any(0))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (0, 4, 8, 12)


def test_floats_are_normalised_as_ours_are() -> None:
    images = random_images(3, 12)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    plain = torch.stack([to_tensor(Image.fromarray(pixels), mean, std) for pixels in images])
    torch.testing.assert_close(plain, normalise(torch.from_numpy(images), MEAN, STD).contiguous(), rtol=0, atol=2e-6)


def test_batches_have_the_shapes_of_both_kinds() -> None:
    images = random_images(5, 16)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    for view in plain_views.VIEWS:
        assert plain_batch(view, images, mean, std, Random(0)).shape == (5, 3, 16, 16)
        assert plain_bytes(view, images, Random(0)).shape == (5, 16, 16, 3)
