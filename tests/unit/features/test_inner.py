"""Statistics of inner maps against loops over channels."""

from __future__ import annotations

import numpy as np

from unissl.features import CachedFeatures, inner_features


def maps(images: int, views: int = 2, side: int = 5, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(images, views, side, side, channels)).astype(np.float16)


def statistics(inner: np.ndarray) -> list[float]:
    """Of one map (h, w, c): all means, all standard deviations, then the means in four overlapping quarters (of an odd
    side, the middle row and column belong to both)."""
    channels = [inner[..., c].astype(np.float64) for c in range(inner.shape[-1])]
    cells = [[part[:3, :3], part[:3, 2:], part[2:, :3], part[2:, 2:]] for part in channels]
    return [part.mean() for part in channels] + [part.std() for part in channels] + [q.mean() for p in cells for q in p]


def test_statistics_are_of_the_clean_view() -> None:
    table = maps(600)  # more than one block
    features = inner_features(CachedFeatures(np.zeros((600, 2, 1), np.float32), table))
    assert features.shape == (600, 18) and features.dtype == np.float32
    for row in (0, 511, 512, 599):
        np.testing.assert_allclose(features[row], statistics(table[row, 0]), atol=1e-5)


def test_rows_that_were_not_extracted_are_zero() -> None:
    table, rows = maps(9), np.array([2, 7])
    features = inner_features(CachedFeatures(np.zeros((9, 2, 1), np.float32), table, rows))
    np.testing.assert_allclose(features[7], statistics(table[7, 0]), atol=1e-5)
    assert not np.delete(features, rows, 0).any()
