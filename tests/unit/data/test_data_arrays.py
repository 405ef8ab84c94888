"""Arrays, the digits, and the catalogue's door."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.datasets import load_digits

from unissl.config import check
from unissl.data import DataConfig, from_arrays, known, load
from unissl.data.dataset import channel_mean_std
from unissl.data.images.resize import scale_arrays
from unissl.errors import UserError
from unissl.run.given_images import store_images
from unissl.run_folder import RunFolder

PIXELS = np.random.RandomState(0).randint(0, 256, (6, 5, 4, 3), dtype=np.uint8)
LABELS = np.array([0, 1, -1, 2, -1, 0])


def test_digits_are_scaled_and_a_fixed_500_held_out() -> None:
    ink, labels = load_digits(return_X_y=True)
    dataset = load(DataConfig())
    assert dataset.test is not None
    held = np.sort(np.random.RandomState(0).permutation(1797)[:500])
    rest = np.setdiff1d(np.arange(1797), held)
    assert np.array_equal(dataset.test.labels, labels[held]) and np.array_equal(dataset.train.labels, labels[rest])
    assert np.array_equal(dataset.train.images.reshape(-1, 64), np.rint(ink[rest] * 255 / 16))
    assert dataset.train.images.shape == (1297, 8, 8, 1) and dataset.train.images.max() == 255
    assert dataset.train.class_names == tuple("0123456789")
    assert not dataset.flip
    assert dataset.mean == pytest.approx((ink[rest].mean() / 16,), abs=1e-3)


def test_digits_at_another_size_with_another_holdout() -> None:
    dataset = load(DataConfig(image_size=16, test_holdout=97))
    assert dataset.train.images.shape == (1700, 16, 16, 1)
    assert dataset.test is not None and len(dataset.test) == 97
    with pytest.raises(UserError, match="leaves nothing"):
        load(DataConfig(test_holdout=1797))


def test_arrays_with_and_without_channels() -> None:
    dataset = from_arrays(PIXELS, LABELS, ["a", "b", "c", "d"], test=(PIXELS[:2], [3, 1]), flip=False)
    assert np.array_equal(dataset.train.images, PIXELS) and dataset.train.labels.tolist() == LABELS.tolist()
    assert dataset.test is not None and dataset.test.labels.tolist() == [3, 1]
    assert dataset.train.class_names == ("a", "b", "c", "d") and not dataset.flip
    grey = from_arrays(PIXELS[..., 0], LABELS)
    assert grey.train.images.shape == (6, 5, 4, 1) and grey.train.class_names == ("0", "1", "2")


@pytest.mark.parametrize(
    ("images", "labels", "options", "sentence"),
    [
        (PIXELS / 255, LABELS, {}, "give uint8"),
        (PIXELS[0, 0], LABELS, {}, "have shape"),
        (PIXELS[..., :2], LABELS, {}, "have shape"),
        (PIXELS[:0], LABELS[:0], {}, "have shape"),
        (PIXELS, LABELS[:-1], {}, "6 images but 5 labels"),
        (PIXELS, LABELS.astype(float), {}, "whole number"),
        (PIXELS, LABELS[:, None], {}, "whole number"),
        (PIXELS, LABELS - 1, {}, "run from -2 to 1"),
        (PIXELS, LABELS, {"class_names": ["a", "b"]}, "use 0 to 1"),
        (PIXELS, np.minimum(LABELS, 0), {}, "at least two classes"),
        (PIXELS, LABELS, {"test": (PIXELS[:, :4], LABELS)}, "bring them to one shape"),
        (PIXELS, LABELS, {"test": (PIXELS, LABELS + 1)}, "Labels of test images run from 0 to 3"),
    ],
)
def test_wrong_arrays(images: Any, labels: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        from_arrays(images, labels, **options)


@settings(max_examples=30, deadline=None)
@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 600), st.just(2), st.just(3), st.sampled_from([1, 3]))))
def test_moments_are_those_of_numpy(images: Any) -> None:
    mean, std = channel_mean_std(images)
    scaled = images.astype(np.float64) / 255
    assert mean == pytest.approx(scaled.mean(axis=(0, 1, 2)), abs=5.1e-5)
    expected = scaled.std(axis=(0, 1, 2))
    for found, exact in zip(std, expected, strict=True):
        assert found == pytest.approx(exact if exact >= 5e-5 else 1.0, abs=5.1e-5)


def test_moments_use_evenly_spaced_images_of_a_large_set() -> None:
    images = np.zeros((20_001, 1, 1, 1), dtype=np.uint8)
    images[-1] = 255  # the last one is looked at
    assert channel_mean_std(images)[0] == (0.0001,)
    images[-1], images[1] = 0, 255  # this one is not
    assert channel_mean_std(images) == ((0.0,), (1.0,))


@pytest.mark.parametrize("holdout", [None, 2])
def test_resized_arrays_keep_their_originals(tmp_path: Path, holdout: int | None) -> None:
    """Distillation takes further crops from them."""
    images = np.random.default_rng(0).integers(0, 256, (8, 6, 9, 1), dtype=np.uint8)
    data = store_images(images, ["a", "b"] * 3 + [None, None], RunFolder(tmp_path))
    assert load(DataConfig(**data)).train.originals is None
    table = load(DataConfig(**data, image_size=12, test_holdout=holdout)).train
    assert table.originals is not None
    again = np.stack([np.asarray(image)[..., None] for image in table.originals()])
    assert len(again) == len(table) == 8 - (holdout or 0)
    assert (scale_arrays(again, 12) == table.images).all()
    assert {image.tobytes() for image in again} <= {image.tobytes() for image in images}


def test_unknown_name_suggests() -> None:
    with pytest.raises(UserError, match=r"Unknown data set 'cifar-10'. Did you mean 'cifar10'"):
        load(DataConfig(name="cifar-10"))
    with pytest.raises(UserError, match="Known: arrays, cifar10, cifar100, digits, fashion-mnist, folder, food101"):
        load(DataConfig(name="zzz"))


@pytest.mark.parametrize(
    "config",
    [
        DataConfig(root="x"),
        DataConfig(name="cifar10", test_holdout=3),
        DataConfig(name="fashion-mnist", test="x"),
        DataConfig(name="parquet", labels="x"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(config: DataConfig) -> None:
    with pytest.raises(UserError, match="has no effect on"):
        load(config)


@pytest.mark.parametrize("tree", [{"image_size": 3}, {"image_size": 5000}, {"test_holdout": 0}, {"sizes": 8}])
def test_settings_out_of_range(tree: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(tree))):
        check(DataConfig, tree, "data")


def test_cards_tell_where_to_get_what_is_missing() -> None:
    cards = {card.name: card for card in known()}
    benchmarks = ["cifar10", "cifar100", "svhn", "stl10", "food101", "imagenet127"]
    assert list(cards) == ["digits", "fashion-mnist", *benchmarks]
    assert cards["digits"].present and not cards["cifar100"].present
    assert (cards["cifar100"].classes, cards["cifar100"].size, cards["cifar100"].channels) == (100, 32, 3)
    assert "cifar-100-python.tar.gz" in cards["cifar100"].where


def test_importing_does_not_load_the_slow_readers() -> None:
    code = "import sys, unissl.data; print([m for m in ('pyarrow', 'sklearn', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
