"""Eq. (1) and (2): the relational embedding solves the ridge problem, and what tight anchors make of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unissl.ops.graph import affinity_scale, relational_embedding
from unissl.ops.simplex import simplex_anchors

CASES = [(4, 3), (4, 5), (4, 9), (7, 8), (16, 17), (16, 5)]  # (d, K): below, at and above K = d + 1


def draw(n: int, dim: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    z = torch.randn(n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(dim * count))
    return z, simplex_anchors(dim, count).double()


def ridge_objective(z: np.ndarray, a: np.ndarray, anchors: np.ndarray, ridge: float) -> float:
    """Eq. (1) term by term."""
    total = 0.0
    for j in range(len(z)):
        total += (z[j] - sum(a[k] * anchors[k, j] for k in range(len(a)))) ** 2
    return float(total + ridge * sum(value**2 for value in a))


@pytest.mark.parametrize(("dim", "count"), CASES)
def test_closed_form_equals_explicit_inverse_and_least_squares(dim: int, count: int) -> None:
    z, anchors = draw(6, dim, count)
    ridge = 0.3
    a = relational_embedding(z, anchors, ridge).numpy()
    p = anchors.numpy()
    inverse = np.linalg.inv(p @ p.T + ridge * np.eye(count))
    # The ridge problem is ordinary least squares on P^T with sqrt(lambda) I and zeros appended.
    system = np.concatenate([p.T, np.sqrt(ridge) * np.eye(count)])
    for row, solution in zip(z.numpy(), a, strict=True):
        np.testing.assert_allclose(solution, row @ p.T @ inverse, rtol=1e-10, atol=1e-12)
        least_squares = np.linalg.lstsq(system, np.concatenate([row, np.zeros(count)]), rcond=None)[0]
        np.testing.assert_allclose(solution, least_squares, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("dim", "count"), CASES)
def test_closed_form_minimises_eq_1(dim: int, count: int) -> None:
    z, anchors = draw(3, dim, count)
    a = relational_embedding(z, anchors, 0.1).numpy()
    rng = np.random.default_rng(0)
    for row, best in zip(z.numpy(), a, strict=True):
        lowest = ridge_objective(row, best, anchors.numpy(), 0.1)
        for size in (1e-3, 1e-1, 1.0):
            step = size * rng.standard_normal(count)
            assert ridge_objective(row, best + step, anchors.numpy(), 0.1) > lowest
            assert ridge_objective(row, best - step, anchors.numpy(), 0.1) > lowest


@pytest.mark.parametrize(("dim", "count"), CASES)
@pytest.mark.parametrize("ridge", [0.05, 0.1, 0.5])
def test_affinity_is_a_scaled_gram_matrix_on_the_span_of_the_anchors(dim: int, count: int, ridge: float) -> None:
    z, anchors = draw(6, dim, count)
    a = relational_embedding(z, anchors, ridge)
    projector = torch.linalg.pinv(anchors, rtol=1e-5) @ anchors  # the identity for K >= d + 1
    expected = affinity_scale(dim, count, ridge) * z @ projector @ z.T
    torch.testing.assert_close(a @ a.T, expected, rtol=1e-5, atol=1e-6)


def test_seed_of_the_anchors_does_not_change_the_affinity() -> None:
    z, _ = draw(5, 8, 9)
    first, second = (relational_embedding(z, simplex_anchors(8, seed=seed).double(), 0.1) for seed in (1, 2))
    assert not torch.allclose(first, second)
    torch.testing.assert_close(first @ first.T, second @ second.T, rtol=1e-5, atol=1e-6)


def test_embedding_passes_a_gradient_and_refuses_a_zero_ridge() -> None:
    z, anchors = draw(3, 4, 5)
    assert torch.autograd.gradcheck(lambda x: relational_embedding(x, anchors, 0.1), z.requires_grad_())
    with pytest.raises(ValueError, match="ridge must be positive"):
        relational_embedding(z, anchors, 0.0)
