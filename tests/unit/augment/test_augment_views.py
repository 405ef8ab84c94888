"""Whole views: against Pillow image by image, under sharding, and in distribution."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from scipy import stats
from torch import Tensor

from unissl.augment import AugmentConfig, check_view_name, compiled, geometry, make_view, normalise, on_cpu
from unissl.augment.randaugment import COLOUR, GREY, OPERATIONS, choose, cutout, rectangles
from unissl.config import check
from unissl.errors import UserError
from unissl.ops.keyed_random import uniform_table

Pictures = Callable[..., Tensor]
ByPillow = Callable[[str, Tensor, list[float]], Tensor]


def crop_reference(image: Tensor, top: int, left: int, flip: bool, pad: int) -> Tensor:
    height, width, _ = image.shape
    padded = np.pad(image.numpy(), ((pad, pad), (pad, pad), (0, 0)), mode="reflect")
    cropped = padded[top : top + height, left : left + width]
    return torch.from_numpy((cropped[:, ::-1] if flip else cropped).copy())


def cutout_reference(image: Tensor, draws: list[float], largest: float) -> Tensor:
    height, width, channels = image.shape
    picture = Image.fromarray(image.numpy() if channels == 3 else image.numpy()[:, :, 0])
    side = draws[0] * largest * width
    left = int(max(0, 1 + (width - 1) * draws[1] - side / 2))
    top = int(max(0, 1 + (height - 1) * draws[2] - side / 2))
    corners = (left, top, min(width, left + side), min(height, top + side))
    ImageDraw.Draw(picture).rectangle(corners, COLOUR if channels == 3 else GREY)
    return torch.from_numpy(np.array(picture)).view(height, width, channels)


def strong_reference(image: Tensor, draws: Tensor, config: AugmentConfig, by_pillow: ByPillow) -> Tensor:
    """One image the slow way, from the same numbers."""
    top, left = (int(u * (2 * config.pad + 1)) for u in draws[:2].tolist())
    image = crop_reference(image, top, left, config.flip and draws[2].item() < 0.5, config.pad)
    for slot in range(config.randaugment_n):
        u, v = draws[3 + 2 * slot : 5 + 2 * slot].tolist()
        operation = OPERATIONS[int(u * 14)]
        scale = config.geometry_scale if operation.source else 1.0
        magnitude = scale * operation.low + (scale * operation.high - scale * operation.low) * v
        image = by_pillow(operation.name, image.unsqueeze(0), [magnitude])[0]
    return cutout_reference(image, draws[-3:].tolist(), config.cutout_max) if config.cutout_max else image


@pytest.mark.parametrize("crop", [on_cpu.crop, geometry.crop], ids=["loop", "tensors"])
def test_crop_and_flip_equals_padding_by_numpy(
    shape: tuple[int, int, int], crop: Callable[[Tensor, geometry.Window], Tensor], pictures: Pictures
) -> None:
    for margin in (0, 1, 4, min(shape[:2]) - 1):
        images = pictures(40, *shape)
        before = images.clone()
        rng = np.random.default_rng(margin)
        top, left = rng.integers(0, 2 * margin + 1, (2, 40))
        top[:2], left[1:3] = [0, 2 * margin], [0, 2 * margin]
        flip = rng.random(40) < 0.5
        result = crop(images, geometry.window((shape[0], shape[1]), top, left, flip, margin))
        parameters = zip(images, top.tolist(), left.tolist(), flip.tolist(), strict=True)
        assert torch.equal(result, torch.stack([crop_reference(i, t, x, f, margin) for i, t, x, f in parameters]))
        assert torch.equal(images, before), "the input was changed"


@pytest.mark.parametrize("largest", [0.5, 1.0])
def test_cutout_equals_a_drawn_rectangle(shape: tuple[int, int, int], largest: float, pictures: Pictures) -> None:
    images = pictures(100, *shape)
    draws = uniform_table(0, 0, "test", "cutout", 100, 3)
    last = 1 - 2.0**-53
    corners = [[s, x, y] for s in (0.0, last, 1e-9) for x in (0.0, last) for y in (0.0, last)]
    draws[: len(corners)] = torch.tensor(corners, dtype=torch.float64)
    expected = [cutout_reference(image, row, largest) for image, row in zip(images, draws.tolist(), strict=True)]
    filled = rectangles(draws.numpy(), largest, *shape[:2])
    assert torch.equal(cutout(images, filled), torch.stack(expected))
    zero, no_operation = np.zeros(100, np.int64), np.zeros((100, 0))
    everything = geometry.window((shape[0], shape[1]), zero, zero, zero.astype(bool), 0)
    by_loop = on_cpu.strong(images, everything, no_operation.astype(np.int64), no_operation, filled)
    assert torch.equal(by_loop, torch.stack(expected))


def test_grey_of_the_rectangle_is_the_luma_of_its_colour() -> None:
    assert Image.new("RGB", (1, 1), COLOUR).convert("L").getpixel((0, 0)) == GREY


@pytest.mark.parametrize(
    "config",
    [
        AugmentConfig(),
        AugmentConfig(flip=False, pad=2, randaugment_n=5, geometry_scale=0.4, cutout_max=0.0),
        AugmentConfig(randaugment_n=0),
    ],
    ids=["default", "changed", "no operations"],
)
def test_strong_view_equals_pillow(
    config: AugmentConfig, shape: tuple[int, int, int], pictures: Pictures, by_pillow: ByPillow
) -> None:
    images = pictures(80, *shape)
    draws = uniform_table(5, 9, "unlabelled", "strong", 80, 6 + 2 * config.randaugment_n)
    view = make_view("strong", images, config, seed=5, step=9, stream="unlabelled")
    expected = [strong_reference(image, row, config, by_pillow) for image, row in zip(images, draws, strict=True)]
    assert view.is_contiguous() and torch.equal(view, torch.stack(expected))


@pytest.mark.parametrize("count", [1, 3, 80])
def test_the_loop_and_tensors_give_the_same_views(
    count: int, shape: tuple[int, int, int], pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU has a compiled loop, every other device works on tensors; a CPU can do both."""
    images, config = pictures(count, *shape), AugmentConfig(randaugment_n=6)

    def made() -> list[Tensor]:
        return [make_view(view, images, config, seed=2, step=count, stream="a") for view in ("flip", "weak", "strong")]

    by_loop = made()
    monkeypatch.setattr(on_cpu, "has_compiler", lambda: False)
    for ours, theirs in zip(by_loop, made(), strict=True):
        assert torch.equal(ours, theirs)


def test_without_a_compiler_that_works_there_are_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba refuses to be imported beside a NumPy that it does not know."""
    assert on_cpu.has_compiler()
    monkeypatch.setitem(sys.modules, "unissl.augment.compiled", None)
    assert not on_cpu.has_compiler.__wrapped__()


def test_the_loop_is_compiled_once(pictures: Pictures) -> None:
    """A table in another memory order would be compiled for anew, which takes longer than many views."""
    for shape, config in (
        ((9, 12, 3), AugmentConfig()),
        ((12, 12, 1), AugmentConfig(crop=8, cutout_max=0.0, randaugment_n=0)),
    ):
        for view in ("flip", "weak", "strong"):
            make_view(view, pictures(3, *shape), config, seed=0, step=0, stream="a")
    assert len(compiled.crop_all.signatures) == len(compiled.strong_all.signatures) == 1


@pytest.mark.parametrize("view", ["flip", "weak", "strong"])
def test_empty_and_strided_batches(view: str, pictures: Pictures) -> None:
    images, config = pictures(12, 16, 10, 3), AugmentConfig()
    assert make_view(view, images[:0], config, seed=0, step=0, stream="a").shape == (0, 16, 10, 3)
    strided = images.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    expected = make_view(view, images, config, seed=0, step=0, stream="a")
    assert torch.equal(make_view(view, strided, config, seed=0, step=0, stream="a"), expected)


def test_weak_view_equals_its_reference(shape: tuple[int, int, int], pictures: Pictures) -> None:
    images = pictures(60, *shape)
    draws = uniform_table(5, 9, "labelled", "weak2", 60, 3).tolist()
    view = make_view("weak2", images, AugmentConfig(), seed=5, step=9, stream="labelled")
    expected = [
        crop_reference(i, int(t * 9), int(x * 9), f < 0.5, 4) for i, (t, x, f) in zip(images, draws, strict=True)
    ]
    assert torch.equal(view, torch.stack(expected))


def test_none_is_the_image_itself(pictures: Pictures) -> None:
    images = pictures(4, 8, 8, 1)
    assert torch.equal(make_view("none", images, AugmentConfig(), seed=0, step=0, stream="heldout"), images)


@pytest.mark.parametrize("name", ["weak", "strong", "strong2"])
def test_a_batch_cut_in_two_gives_the_same_views(name: str, pictures: Pictures) -> None:
    images, config = pictures(50, 32, 32, 3), AugmentConfig()

    def view(start: int, stop: int) -> Tensor:
        part = images[start:stop]
        return make_view(name, part, config, seed=1, step=2, stream="unlabelled", positions=slice(start, stop))

    whole = make_view(name, images, config, seed=1, step=2, stream="unlabelled")
    for cut in (0, 1, 23, 50):
        assert torch.equal(torch.cat([view(0, cut), view(cut, 50)]), whole)


def test_views_repeat_and_differ_by_key(pictures: Pictures) -> None:
    images, config = pictures(30, 32, 32, 3), AugmentConfig()
    before = images.clone()

    def view(name: str = "strong", seed: int = 0, step: int = 0, stream: str = "a") -> Tensor:
        return make_view(name, images, config, seed=seed, step=step, stream=stream)

    assert torch.equal(view(), view())
    for other in (view("strong2"), view(seed=1), view(step=1), view(stream="b")):
        assert not torch.equal(view(), other)
    assert torch.equal(images, before)


@pytest.mark.parametrize("view", ["flip", "weak", "strong"])
def test_grey_images_are_left_as_they_are(view: str, pictures: Pictures) -> None:
    """The operations work in place, and grey images need no packing: a careless one would write into the pool."""
    images = pictures(30, 28, 28, 1)
    before = images.clone()
    make_view(view, images, AugmentConfig(randaugment_n=6), seed=0, step=0, stream="a")
    assert torch.equal(images, before)


def chosen(draws: Tensor, geometry_scale: float) -> tuple[Tensor, Tensor]:
    choice, magnitudes = choose(draws.numpy(), geometry_scale)
    return torch.from_numpy(choice), torch.from_numpy(magnitudes)


def test_operations_and_magnitudes_are_uniform() -> None:
    """Chi-square over the 14 operations of each slot and over pairs of slots, Kolmogorov-Smirnov over magnitudes.

    Each of the 15 tests has a false-alarm rate of 1e-3 (1.5e-2 together); the seed is fixed, so a pass stays a pass.
    """
    count = 40_000
    choice, magnitudes = chosen(uniform_table(0, 0, "test", "strong", count, 6), 1.0)
    for slot in range(3):
        assert stats.chisquare(choice[:, slot].bincount(minlength=14).numpy()).pvalue > 1e-3
    pairs = (choice[:, 0] * 14 + choice[:, 1]).bincount(minlength=196)
    assert stats.chisquare(pairs.numpy()).pvalue > 1e-3
    for number, operation in enumerate(OPERATIONS):
        drawn = magnitudes[choice == number].numpy()
        if operation.high > operation.low:
            uniform = stats.uniform(operation.low, operation.high - operation.low)
            assert stats.kstest(drawn, uniform.cdf).pvalue > 1e-3


def test_the_table_of_the_protocol() -> None:
    ranges = {operation.name: (operation.low, operation.high) for operation in OPERATIONS}
    assert ranges == {
        "AutoContrast": (0, 0), "Equalize": (0, 0), "Identity": (0, 0),
        "Brightness": (0.05, 0.95), "Color": (0.05, 0.95), "Contrast": (0.05, 0.95), "Sharpness": (0.05, 0.95),
        "Posterize": (4, 8), "Solarize": (0, 256), "Rotate": (-30, 30),
        "ShearX": (-0.3, 0.3), "ShearY": (-0.3, 0.3), "TranslateX": (-0.3, 0.3), "TranslateY": (-0.3, 0.3),
    }  # fmt: skip


def test_geometry_scale_shrinks_only_geometry() -> None:
    draws = uniform_table(0, 0, "test", "strong", 2000, 6)
    choice, full = chosen(draws, 1.0)
    _, half = chosen(draws, 0.5)
    affine = torch.tensor([operation.source is not None for operation in OPERATIONS])[choice]
    assert torch.allclose(half[affine], 0.5 * full[affine], rtol=1e-12, atol=1e-12)
    assert torch.equal(half[~affine], full[~affine])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalise(channels: int, dtype: torch.dtype, pictures: Pictures) -> None:
    images = pictures(5, 9, 12, channels)
    mean, std = [0.485, 0.456, 0.406][:channels], [0.229, 0.224, 0.225][:channels]
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        result = normalise(images, mean, std)
    finally:
        torch.set_default_dtype(default)
    expected = (images.double() / 255 - torch.tensor(mean).double()) / torch.tensor(std).double()
    assert result.dtype == dtype and result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result.permute(0, 2, 3, 1).double(), expected, rtol=0, atol=2e-6)


def test_names() -> None:
    for name in ("weak", "strong", "none", "weak2", "strong13"):
        check_view_name(name)
    for name in ("", "2", "wek", "strong_2", "strong2b"):
        with pytest.raises(ValueError, match="unknown view"):
            check_view_name(name)


def test_wrong_input_is_refused(pictures: Pictures) -> None:
    images, config = pictures(4, 8, 8, 3), AugmentConfig()
    with pytest.raises(UserError, match="side of 8 pixels"):
        make_view("weak", images, AugmentConfig(pad=8), seed=0, step=0, stream="a")
    with pytest.raises(ValueError, match="one position in the global batch per image"):
        make_view("weak", images, config, seed=0, step=0, stream="a", positions=slice(2, 5))
    with pytest.raises(ValueError, match="uint8"):
        make_view("weak", images.float(), config, seed=0, step=0, stream="a")
    with pytest.raises(ValueError, match="one number per channel"):
        normalise(images, [0.5], [0.5])
    for tree in ({"geometry": 0.0}, {"geometry": 1.5}, {"pad": -1}, {"cutout": 2.0}, {"operations": -1}):
        with pytest.raises(UserError, match=next(iter(tree))):
            check(AugmentConfig, tree)


@pytest.mark.parametrize("size", [(8, 8), (11, 9)])
def test_the_compiled_loop_knows_operations_by_name(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the table may change without a new compilation."""
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (40, *size, 3), dtype=np.uint8))
    for module in ("on_cpu", "randaugment"):
        monkeypatch.setattr(f"unissl.augment.{module}.OPERATIONS", OPERATIONS[::-1])
    compiled_views = make_view("strong", images, AugmentConfig(pad=2), seed=0, step=0, stream="")
    monkeypatch.setattr("unissl.augment.on_cpu.has_compiler", lambda: False)
    assert torch.equal(compiled_views, make_view("strong", images, AugmentConfig(pad=2), seed=0, step=0, stream=""))
