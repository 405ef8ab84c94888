"""Views that are cut from larger images, as Food-101's are: against slices by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from unissl.augment import AugmentConfig, make_view
from unissl.augment.image_views import ImageViews
from unissl.errors import UserError
from unissl.ops.keyed_random import uniform_table

N = 400
CUT = AugmentConfig(crop=32, pad=0)


def images(height: int = 36, width: int = 36) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (N, height, width, 3), dtype=np.uint8))


def view(name: str, made_of: Tensor, config: AugmentConfig) -> Tensor:
    return make_view(name, made_of, config, seed=1, step=2, stream="s")


@pytest.mark.parametrize(("height", "width", "pad", "crop"), [(36, 36, 0, 32), (36, 40, 0, 32), (20, 24, 3, 17)])
def test_weak_is_a_slice_of_the_padded_image(height: int, width: int, pad: int, crop: int) -> None:
    some = images(height, width)
    made = view("weak", some, AugmentConfig(crop=crop, pad=pad))
    draws = uniform_table(1, 2, "s", "weak", N, 3)
    seen = set()
    for image, row, result in zip(some, draws.tolist(), made, strict=True):
        padded = np.pad(image.numpy(), ((pad, pad), (pad, pad), (0, 0)), mode="reflect")
        top, left = int(row[0] * (height + 2 * pad - crop + 1)), int(row[1] * (width + 2 * pad - crop + 1))
        cut = padded[top : top + crop, left : left + crop]
        assert np.array_equal(result, cut[:, ::-1] if row[2] < 0.5 else cut)
        seen.add((top, left))
    assert {top for top, _ in seen} == set(range(height + 2 * pad - crop + 1))
    assert {left for _, left in seen} == set(range(width + 2 * pad - crop + 1))


def test_without_augmentation_it_is_the_centre() -> None:
    some = images()
    assert torch.equal(view("none", some, CUT), some[:, 2:34, 2:34])
    flipped = view("flip", some, CUT)
    centre = some[:, 2:34, 2:34]
    kept = torch.tensor([torch.equal(image, one) for image, one in zip(flipped, centre, strict=True)])
    assert 0.4 < kept.float().mean() < 0.6
    assert torch.equal(flipped[~kept], centre[~kept].flip(2))


def test_strong_has_the_size_of_the_cut() -> None:
    assert view("strong", images(), CUT).shape == (N, 32, 32, 3)


def test_the_network_is_told_the_size_of_the_cut() -> None:
    views = ImageViews(images().numpy(), CUT, (0.5,) * 3, (0.5,) * 3, torch.device("cpu"))
    assert views.shape == (3, 32, 32)
    for name in ("none", "weak", "strong"):
        assert views(name, np.arange(3)).shape == (3, 3, 32, 32)


def test_without_a_cut_nothing_has_changed() -> None:
    """The numbers of earlier versions: where a crop may start depends on the border alone."""
    some = images(32, 32)
    assert torch.equal(view("weak", some, AugmentConfig()), view("weak", some, AugmentConfig(crop=32)))
    assert torch.equal(view("strong", some, AugmentConfig()), view("strong", some, AugmentConfig(crop=32)))


@pytest.mark.parametrize("name", ["none", "weak", "strong"])
def test_a_cut_larger_than_the_image_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="'augment.crop' is 40; set it to at most the images' side of 36 pixels"):
        view(name, images(), AugmentConfig(crop=40, pad=0))
