"""Photos whose features are known from another table are copied, not computed again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unissl.augment import AugmentConfig
from unissl.features import extract as extract_module
from unissl.features import extract_features
from unissl.features.known_rows import KnownRows, row_digests, write_rows
from unissl.nets import backbone_installed
from unissl.utils.cache import cached

LITE0, CPU, AUGMENT = "efficientnet-lite0", torch.device("cpu"), AugmentConfig(pad=2)
needs_weights = pytest.mark.skipif(not backbone_installed(LITE0), reason="needs the pretrained weights")


def views(augment: AugmentConfig, copies: int) -> AugmentConfig:
    return augment.model_copy(update={"cached_views": copies})


def table_of(images: Any, computed: list[int], wanted: Any = None) -> Any:
    """An entry with the sum of each image, and the rows that had to be computed."""
    settings = {"pixels": row_digests(images).tobytes().hex(), "shape": list(images.shape), "kind": "sums"}
    settings |= {} if wanted is None else {"rows": [int(row) for row in wanted]}

    def compute(missing: Any) -> Iterator[list[Any]]:
        computed.extend(missing.tolist())
        for start in range(0, len(missing), 2):
            yield [images[missing[start : start + 2]].sum((1, 2, 3)).astype(np.int64)]

    def build(folder: Path) -> dict[str, Any]:
        rows = np.arange(len(images)) if wanted is None else wanted
        digests = row_digests(images)
        write_rows(folder, KnownRows("sums", settings, digests, rows), {"sums": 8}, compute, 4, "sums")
        return {}

    return cached("sums", [], settings, build).arrays["sums"].view(np.int64)[:, 0]


def images_of(seed: int, count: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (count, 4, 4, 1)).astype(np.uint8)


def test_rows_of_other_tables_are_copied_and_the_others_computed() -> None:
    first, second = images_of(0, 9), images_of(1, 6)
    computed: list[int] = []
    table_of(first, computed)
    table_of(second, computed)
    assert computed == [*range(9), *range(6)]
    computed.clear()
    new = images_of(2, 2)
    mixed = np.concatenate([second[3:], new[:1], first[4:], new[1:], first[:1], first[:1]])
    assert np.array_equal(table_of(mixed, computed), mixed.sum((1, 2, 3))) and computed == [3, 9]


def test_rows_that_were_not_wanted_are_zero_and_never_copied() -> None:
    images, computed = images_of(0, 10), []
    sums = table_of(images, computed, np.array([1, 2, 7]))
    assert computed == [1, 2, 7] and np.flatnonzero(sums).tolist() == [1, 2, 7]
    computed.clear()
    assert np.array_equal(table_of(images, computed), images.sum((1, 2, 3))) and computed == [0, 3, 4, 5, 6, 8, 9]


def test_other_settings_share_no_rows() -> None:
    images, computed = images_of(0, 5), []
    table_of(images, computed)
    smaller = np.ascontiguousarray(images[:, :2])  # other sizes, other settings
    table_of(smaller, computed)
    assert computed == [*range(5), *range(5)]


@needs_weights
def test_features_of_a_grown_table_have_the_bits_of_a_fresh_extraction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.random.default_rng(3).integers(0, 256, (9, 32, 32, 3)).astype(np.uint8)
    extract_features(images[2:7], LITE0, views(AUGMENT, 1), CPU, maps=True)
    passed: list[int] = []
    really = extract_module.forward_features

    def counted(*arguments: Any, **options: Any) -> Any:
        passed.append(len(arguments[1]))
        return really(*arguments, **options)

    monkeypatch.setattr(extract_module, "forward_features", counted)
    grown = extract_features(images[::-1], LITE0, views(AUGMENT, 1), CPU, maps=True)
    assert passed == [4, 4]  # both views of the four new images
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path))
    fresh = extract_features(images[::-1], LITE0, views(AUGMENT, 1), CPU, maps=True)
    assert np.array_equal(grown.features, fresh.features) and grown.maps is not None and fresh.maps is not None
    assert np.array_equal(grown.maps, fresh.maps)


@needs_weights
def test_the_scaler_of_some_rows_ignores_the_others() -> None:
    images = np.random.default_rng(4).integers(0, 256, (6, 32, 32, 3)).astype(np.uint8)
    some = extract_features(images, LITE0, views(AUGMENT, 0), CPU, rows=np.array([0, 2, 5]))
    alone = extract_features(images[[0, 2, 5]], LITE0, views(AUGMENT, 0), CPU)
    assert torch.equal(some.scaler.mean, alone.scaler.mean) and not some.features[[1, 3, 4]].any()
