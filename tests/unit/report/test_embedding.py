"""The map's points: neighbours stay neighbours, and nothing is too small or too flat for it."""

from __future__ import annotations

import numpy as np
import pytest

from unissl.plots.embedding import project_2d


def test_clusters_stay_apart() -> None:
    rng = np.random.default_rng(0)
    centres = 20 * rng.normal(size=(3, 8))
    features = np.concatenate([centre + rng.normal(size=(30, 8)) for centre in centres]).astype(np.float32)
    points, kinds = project_2d(features), np.repeat([0, 1, 2], 30)
    for point, kind in zip(points, kinds, strict=True):
        nearest = np.argsort(np.linalg.norm(points - point, axis=1))[1:6]
        assert (kinds[nearest] == kind).all()
    assert np.array_equal(points, project_2d(features))


@pytest.mark.parametrize("shape", [(1, 4), (2, 4), (5, 1), (6, 4), (40, 2)])
def test_few_images_or_few_features(shape: tuple[int, int]) -> None:
    points = project_2d(np.random.default_rng(0).normal(size=shape).astype(np.float32))
    assert points.shape == (shape[0], 2) and np.isfinite(points).all()


def test_a_network_that_says_the_same_of_all_images() -> None:
    assert project_2d(np.ones((50, 4), dtype=np.float32)).tolist() == [[0, 0]] * 50
