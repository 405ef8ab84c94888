"""Eq. (5): the anchors have the geometry that the paper states, in every regime of K."""

from __future__ import annotations

import math

import pytest
import torch

from unissl.ops import simplex
from unissl.ops.simplex import simplex_anchors


@pytest.mark.parametrize(("dim", "count"), [(1, 2), (3, 2), (5, 3), (5, 6), (16, 9), (128, 50), (128, 129)])
def test_simplex_entry_by_entry(dim: int, count: int) -> None:
    anchors = simplex_anchors(dim, count)
    assert anchors.shape == (count, dim)
    rows = anchors.tolist()
    for i in range(count):
        for j in range(i + 1):
            inner = sum(x * y for x, y in zip(rows[i], rows[j], strict=True))
            assert abs(inner - (1.0 if i == j else -1 / (count - 1))) < 1e-6
    for column in zip(*rows, strict=True):
        assert abs(sum(column)) < 1e-6


def test_simplex_is_the_formula_of_the_paper() -> None:
    """P = sqrt(K/(K-1)) V Q^T with V the eigenvectors of the centring matrix for eigenvalue 1, up to their basis."""
    dim, count = 6, 7
    centring = torch.eye(count, dtype=torch.float64) - 1 / count
    v = simplex._centred_basis(count)
    torch.testing.assert_close(centring @ v, v, rtol=0, atol=1e-12)
    torch.testing.assert_close(v.T @ v, torch.eye(dim, dtype=torch.float64), rtol=0, atol=1e-12)
    q = simplex._orthonormal(dim, dim, seed=3)
    torch.testing.assert_close(q @ q.T, torch.eye(dim, dtype=torch.float64), rtol=0, atol=1e-12)
    expected = math.sqrt(count / (count - 1)) * v @ q.T
    torch.testing.assert_close(simplex_anchors(dim, seed=3).double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("dim", "count"), [(2, 5), (3, 6), (3, 5), (4, 7), (16, 40), (128, 200)])
def test_above_the_simplex_a_unit_norm_tight_frame(dim: int, count: int) -> None:
    anchors = simplex_anchors(dim, count).double()
    torch.testing.assert_close(anchors.norm(dim=1), torch.ones(count, dtype=torch.float64), rtol=0, atol=1e-6)
    tight = count / dim * torch.eye(dim, dtype=torch.float64)
    torch.testing.assert_close(anchors.T @ anchors, tight, rtol=0, atol=2e-6)
    if dim % 2 == 0 or count % 2 == 0:
        torch.testing.assert_close(anchors.sum(0), torch.zeros(dim, dtype=torch.float64), rtol=0, atol=1e-5)
    assert torch.unique(anchors, dim=0).shape[0] == count


def test_default_count_dtype_and_seed() -> None:
    assert simplex_anchors(5).shape == (6, 5)
    assert simplex_anchors(5).dtype == torch.get_default_dtype()
    assert torch.equal(simplex_anchors(5, seed=1), simplex_anchors(5, seed=1))
    assert not torch.allclose(simplex_anchors(5, seed=1), simplex_anchors(5, seed=2))


def test_anchors_leave_the_global_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    simplex_anchors(5)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(("dim", "count"), [(0, 3), (4, 1)])
def test_impossible_sizes_are_refused(dim: int, count: int) -> None:
    with pytest.raises(ValueError, match="at least one dimension and two points"):
        simplex_anchors(dim, count)
