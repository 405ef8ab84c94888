"""Eq. (4): the representation consistency loss."""

from __future__ import annotations

import math

import pytest
import torch

from unissl.ops.graph import consistency_loss


def cosine(x: list[float], y: list[float]) -> float:
    inner = sum(a * b for a, b in zip(x, y, strict=True))
    return inner / math.sqrt(sum(a * a for a in x) * sum(b * b for b in y))


@pytest.mark.parametrize(("n", "dim"), [(1, 2), (2, 3), (7, 5)])
def test_loss_equals_loops(n: int, dim: int) -> None:
    z_w, z_s, f_w, f_s = torch.randn(4, n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    pairs = [cosine(z_w[i].tolist(), f_s[i].tolist()) + cosine(z_s[i].tolist(), f_w[i].tolist()) for i in range(n)]
    assert consistency_loss(z_w, z_s, f_w, f_s).item() == pytest.approx(-sum(pairs) / n, rel=1e-12)


def test_bounds() -> None:
    x, y = torch.randn(2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert consistency_loss(x, y, 3 * y, 2 * x).item() == pytest.approx(-2)
    assert consistency_loss(x, y, -y, -x).item() == pytest.approx(2)


def test_features_get_no_gradient() -> None:
    views = [torch.randn(3, 4).requires_grad_() for _ in range(4)]
    gradients = torch.autograd.grad(consistency_loss(*views), views, allow_unused=True)
    z_weak, z_strong, f_weak, f_strong = gradients
    assert z_weak.abs().max() > 0 and z_strong.abs().max() > 0
    assert f_weak is None and f_strong is None
