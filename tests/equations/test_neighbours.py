"""Smoothing over neighbours (``ops.neighbours``) against loops over single numbers, and against its limit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unissl.ops import neighbours
from unissl.ops.neighbours import agreement, nearest, spread_labels, transition


def some_vectors(n: int = 23, width: int = 5) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


def slow_matrix(x: np.ndarray, k: int, answers: np.ndarray | None = None) -> np.ndarray:
    """D^-1/2 (S + S') D^-1/2, one entry at a time."""
    n = len(x)
    cosine = [[float(x[i] @ x[j] / (np.linalg.norm(x[i]) * np.linalg.norm(x[j]))) for j in range(n)] for i in range(n)]
    s = np.zeros((n, n))
    for i in range(n):
        others = sorted((j for j in range(n) if j != i), key=lambda j: -cosine[i][j])
        for j in others[:k]:
            agreed = 1.0 if answers is None else float(sum(np.sqrt(answers[i][c] * answers[j][c]) for c in range(4)))
            s[i, j] = max(cosine[i][j], 0.0) ** 3 * agreed
    w = s + s.T
    d = w.sum(1)
    return np.array([[w[i, j] / np.sqrt(d[i] * d[j]) if w[i, j] else 0.0 for j in range(n)] for i in range(n)])


@pytest.mark.parametrize("block", [4, 1024])
@pytest.mark.parametrize("k", [1, 3, 10])
def test_graph(k: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "BLOCK", block)
    x = some_vectors()
    np.testing.assert_allclose(transition(*nearest(x, k)).toarray(), slow_matrix(x.numpy(), k), atol=1e-12)


def test_neighbours_of_features_that_may_be_overwritten() -> None:
    x = some_vectors()
    kept, scratch = x.clone(), x.clone()
    expected, got = nearest(x, 3), nearest(scratch, 3, overwrite=True)
    assert torch.equal(x, kept) and not torch.equal(scratch, kept)
    assert all(torch.equal(*pair) for pair in zip(expected, got, strict=True))


def test_graph_of_rows_that_agree() -> None:
    x, answers = some_vectors(), np.random.default_rng(2).dirichlet(np.ones(4), 23)
    answers[3], answers[4] = np.eye(4)[0], np.eye(4)[1]  # of two opinions
    places, cosines = nearest(x, 10)
    agreed = agreement(answers, places)
    assert agreed.shape == (23, 10) and agreed.max() <= 1 + 1e-12
    expected = slow_matrix(x.numpy(), 10, answers)
    np.testing.assert_allclose(transition(places, cosines, agreed).toarray(), expected, atol=1e-12)


def test_smoothing_step_by_step() -> None:
    x, y = some_vectors(), np.random.default_rng(0).dirichlet(np.ones(4), 23)
    matrix = slow_matrix(x.numpy(), 3)
    f = y.copy()
    for _ in range(7):
        new = np.zeros_like(f)
        for i in range(23):
            for c in range(4):
                new[i, c] = 0.6 * sum(matrix[i, j] * f[j, c] for j in range(23)) + 0.4 * y[i, c]
        f = new
    expected = f / f.sum(1, keepdims=True)
    np.testing.assert_allclose(spread_labels(y, transition(*nearest(x, 3)), share=0.6, rounds=7), expected, atol=1e-12)


def test_many_rounds_solve_the_linear_system() -> None:
    """The fixed point is (1 - a)(I - a M)^-1 Y."""
    x, y = some_vectors(), np.random.default_rng(1).dirichlet(np.ones(3), 23)
    m = slow_matrix(x.numpy(), 5)
    limit = 0.2 * np.linalg.solve(np.eye(23) - 0.8 * m, y)
    got = spread_labels(y, transition(*nearest(x, 5)), share=0.8, rounds=300)
    np.testing.assert_allclose(got, limit / limit.sum(1, keepdims=True), atol=1e-12)


def test_a_row_like_no_other_keeps_its_answer() -> None:
    x = torch.eye(3, dtype=torch.float64)
    y = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    np.testing.assert_allclose(spread_labels(y, transition(*nearest(x, 2))), y, atol=1e-12)


def test_fewer_rows_than_neighbours() -> None:
    places, cosines = nearest(some_vectors(3), 10)
    assert places.shape == cosines.shape == (3, 2)
