"""The consensus of a pool (``ops.consensus``) against the closed form on whole matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unissl.ops.consensus import consensus_labels, spread_to_limit
from unissl.ops.neighbours import nearest, spread_labels, transition

CLASSES = 4


def some_rows(n: int = 40, width: int = 5) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


def some_labels(n: int = 40) -> np.ndarray:
    labels = np.full(n, -1)
    labels[:6] = [0, 1, 2, 3, 3, 1]
    return labels


def dense_graph(x: np.ndarray, k: int) -> np.ndarray:
    """D^-1/2 (S + S') D^-1/2 with s_ij = max(cos_ij, 0)^3 for the k nearest rows j of i."""
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, -np.inf)
    s = np.zeros_like(cosine)
    for i, row in enumerate(cosine):
        near = np.argsort(-row)[:k]
        s[i, near] = np.maximum(row[near], 0) ** 3
    w = s + s.T
    return w / np.sqrt(np.outer(w.sum(1), w.sum(1)))


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("k", [3, 10])
def test_closed_form(k: int, share: float) -> None:
    x, labels = some_rows(), some_labels()
    given = np.zeros((len(x), CLASSES))
    for row in range(6):
        given[row, labels[row]] = 1
    limit = (1 - share) * np.linalg.inv(np.eye(len(x)) - share * dense_graph(x.numpy(), k)) @ given
    expected = limit / limit.sum(1, keepdims=True)
    probs = consensus_labels(transition(*nearest(x, k)), labels, CLASSES, share)
    np.testing.assert_allclose(probs, expected, atol=1e-5)
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-12)


def test_limit_of_the_rounds() -> None:
    """What :func:`spread_labels` comes to after many rounds."""
    matrix = transition(*nearest(some_rows(), 5))
    given = np.random.default_rng(0).dirichlet(np.ones(CLASSES), 40)
    rounds = spread_labels(given, matrix, share=0.9, rounds=300)
    limit = spread_to_limit(given, matrix, 0.9)
    np.testing.assert_allclose(limit / limit.sum(1, keepdims=True), rounds, atol=1e-5)


def test_rows_that_no_label_reaches() -> None:
    """Two groups at right angles, labels in one of them only; and a class without a label."""
    x = torch.zeros(12, 4, dtype=torch.float64)
    x[:6, :2], x[6:, 2:] = some_rows(6, 2).abs(), some_rows(6, 2).abs()
    labels = np.full(12, -1)
    labels[[0, 1]] = [0, 2]
    probs = consensus_labels(transition(*nearest(x, 3)), labels, CLASSES)
    np.testing.assert_allclose(probs[:6].sum(1), 1)
    assert not probs[6:].any() and not probs[:, [1, 3]].any()
