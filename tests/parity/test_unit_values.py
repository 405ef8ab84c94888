"""Published and derived numbers of SAGE's released form, to the digits given."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from unissl.ops.graph import affinity_scale, contrast_loss
from unissl.ops.losses import cross_entropy, smooth
from unissl.ops.simplex import simplex_anchors
from unissl.ops.stats import TruncatedGaussian, confidence_and_margin

Z_WEAK = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
Z_STRONG = torch.tensor([[0.6, 0.8, 0], [0, 0.6, 0.8], [0.8, 0, -0.6]])
FEW_CLASSES: dict[str, Any] = {"sim_temperature": 0.5, "graph_temperature": 0.25, "steps": 5}
MANY_CLASSES: dict[str, Any] = {"sim_temperature": 1.0, "graph_temperature": 0.5, "steps": 3}


@pytest.mark.parametrize("anchors", [None, simplex_anchors(3)], ids=["scalar", "anchors"])
@pytest.mark.parametrize(
    ("regime", "cross", "expected"),
    [
        (FEW_CLASSES, "swapped", 0.94150),
        (FEW_CLASSES, "stacked", 0.93161),
        (MANY_CLASSES, "swapped", 0.79788),
        (MANY_CLASSES, "stacked", 0.79591),
    ],
)
def test_contrast_loss(regime: dict[str, Any], cross: Any, expected: float, anchors: Any) -> None:
    loss = contrast_loss(Z_WEAK, Z_STRONG, anchors=anchors, cross=cross, exact="dense", **regime)
    assert loss.item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("cross", ["stacked", "swapped"])
@pytest.mark.parametrize("steps", [1, 5])
def test_contrast_loss_is_ln_2_when_all_cosines_are_zero(cross: Any, steps: int) -> None:
    z = torch.eye(6)
    loss = contrast_loss(z[:3], z[3:], steps=steps, cross=cross, exact="dense")
    assert loss.item() == pytest.approx(math.log(2), abs=1e-6)


def test_reliability_weights_of_the_first_step() -> None:
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]])
    confidence, margin = TruncatedGaussian(1 / 3), TruncatedGaussian(1 / 3)
    q_max, q_gap = confidence_and_margin(probs)
    weights = confidence(q_max) * margin(q_gap)
    assert weights.tolist() == pytest.approx([1.0, 0.85160], abs=1e-5)
    assert (confidence.mean.item(), confidence.var.item()) == pytest.approx((0.333550, 0.999045), abs=1e-6)
    assert (margin.mean.item(), margin.var.item()) == pytest.approx((0.333275, 0.999101), abs=1e-6)


@pytest.mark.parametrize(
    ("ridge", "scale"), [(0.05, 0.9007), (0.1, 0.8212), (0.2, 0.6908), (0.3, 0.5892), (0.4, 0.5085), (0.5, 0.4433)]
)
def test_affinity_scale_by_ridge(ridge: float, scale: float) -> None:
    assert affinity_scale(128, 129, ridge) == pytest.approx(scale, abs=5e-5)


@pytest.mark.parametrize(("dim", "count", "scale"), [(3, 4, 0.64900), (2048, 2049, 0.8261), (128, 200, 0.565)])
def test_affinity_scale_by_size(dim: int, count: int, scale: float) -> None:
    assert affinity_scale(dim, count, 0.1) == pytest.approx(scale, abs=5e-4 if count == 200 else 5e-5)


@pytest.mark.parametrize(("classes", "floor"), [(10, 0.5448), (100, 0.7846), (101, 0.7856), (127, 0.8087)])
def test_floor_of_the_smoothed_cross_entropy(classes: int, floor: float) -> None:
    target = smooth(torch.eye(classes, dtype=torch.float64)[:1], 0.1)
    lowest = cross_entropy(target.log(), target).item()
    assert lowest == pytest.approx(floor, abs=5e-5)
    elsewhere = target.log() + 0.1 * torch.randn(1, classes, generator=torch.Generator().manual_seed(0))
    assert cross_entropy(elsewhere, target).item() > lowest


def test_anchors_are_a_simplex_in_every_dimension_up_to_256() -> None:
    for dim in range(2, 257):
        anchors = simplex_anchors(dim).double()
        count = dim + 1
        expected = torch.full((count, count), -1 / dim, dtype=torch.float64).fill_diagonal_(1)
        assert (anchors @ anchors.T - expected).abs().max() < 1e-6, dim
        assert anchors.sum(0).abs().max() < 1e-6, dim


def test_thin_constant_at_the_size_of_the_paper_is_about_1e_4() -> None:
    """n = 896 nodes, d = 128: what the thin value leaves out of the dense one."""
    z = normalize(torch.randn(896, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    dense, thin = (contrast_loss(z[:448], z[448:], exact=exact).item() for exact in ("dense", "thin"))
    assert 0 < dense - thin < 5e-4
