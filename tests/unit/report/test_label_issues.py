"""Labels that the neighbours in the pool contradict."""

from __future__ import annotations

import numpy as np
import pytest

from unissl.report import label_issues


def test_neighbours_are_the_nearest_by_angle() -> None:
    rng = np.random.default_rng(3)
    features, pool = rng.normal(size=(4, 5)).astype(np.float32), rng.normal(size=(30, 5)).astype(np.float32)
    probs = rng.dirichlet(np.ones(3), 30).astype(np.float32)
    votes = label_issues.neighbour_votes(features, pool, probs)
    for feature, vote in zip(features, votes, strict=True):
        cosines = [float(feature @ p / np.linalg.norm(feature) / np.linalg.norm(p)) for p in pool]
        nearest = sorted(range(30), key=lambda i: -cosines[i])[:10]
        assert vote == pytest.approx(np.mean([probs[i] for i in nearest], axis=0), abs=1e-6)


def test_a_pool_smaller_than_the_neighbourhood_votes_as_a_whole() -> None:
    probs = np.array([[1, 0], [0, 1]], dtype=np.float32)
    votes = label_issues.neighbour_votes(np.ones((1, 2), np.float32), np.eye(2, dtype=np.float32), probs)
    assert votes.tolist() == [[0.5, 0.5]]


def test_a_memorised_wrong_label_is_found_by_its_neighbours() -> None:
    labels = np.array([0, 1, 2])
    probs = np.eye(3, dtype=np.float32)
    votes = np.array([[0.1, 0.9, 0], [0, 1, 0], [0.6, 0, 0.4]], dtype=np.float32)
    issues = label_issues.find_label_issues(labels, probs, votes, [])
    assert issues.rivals[0] == 1 and issues.leads == pytest.approx([0.8, -1, 0.2], abs=1e-6)
    assert issues.flagged.tolist() == [0] and issues.checked == 3
    absent = label_issues.find_label_issues(labels, probs, votes, absent=[0])
    assert absent.leads[0] == -1, "images of a class that is absent from the pool have no neighbours of their class"
    assert label_issues.find_label_issues(labels, probs, None, []).leads.tolist() == [-1, -1, -1]
