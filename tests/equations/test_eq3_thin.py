"""Eq. (3): the thin form is the dense form, in value (up to the stated constant) and in gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from unissl.ops import graph
from unissl.ops.graph import affinity_scale, contrast_loss, relational_embedding, structural_consensus
from unissl.ops.simplex import simplex_anchors


def evaluate(v: Tensor, batch: int, unit: bool, **options: Any) -> tuple[float, Tensor]:
    """Loss and gradient in the raw rows v, which are normalised first if ``unit``."""
    v = v.clone().requires_grad_()
    z = normalize(v) if unit else v
    loss = contrast_loss(z[:batch], z[batch:], **options)
    (gradient,) = torch.autograd.grad(loss, v)
    return loss.item(), gradient


def left_out(z: Tensor, batch: int, options: dict[str, Any]) -> float:
    """tr(G) / (t n (n-1)), the constant that the thin value lacks when the diagonal is dropped."""
    n, dim = z.shape
    if options["anchors"] is None:
        a = z * affinity_scale(dim, dim + 1, options["ridge"]) ** 0.5
    else:
        a = relational_embedding(z, options["anchors"], options["ridge"])
    bias = options["self_bias"] * torch.eye(batch, dtype=z.dtype).repeat(n // batch, n // batch)
    consensus = structural_consensus(a @ a.T / options["graph_temperature"] + bias, options["steps"])
    return float(consensus.trace() / (options["sim_temperature"] * n * (n - 1)))


def rounding(z: Tensor, options: dict[str, Any]) -> tuple[float, float]:
    """What float64 leaves of terms that cancel, for value and gradient: where similarities are saturated and equal to
    their targets, both forms subtract terms of sizes up to |Z|^2/(t n) and |Z|/(t n).
    """
    size = float(z.norm())
    unit = 1e-14 / (options["sim_temperature"] * len(z))
    return unit * size**2, unit * size


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, int, dict[str, Any]]:
    batch, dim = draw(st.integers(1, 12)), draw(st.integers(2, 8))
    views = draw(st.integers(1 if batch > 1 else 2, 2))
    count = draw(st.none() | st.integers(2, 2 * dim))
    v = torch.randn(
        views * batch, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))
    )
    if draw(st.booleans()):
        v[-1] = v[0]  # identical rows tie
    options = {
        "anchors": None if count is None else simplex_anchors(dim, count),
        "ridge": draw(st.floats(0.01, 2)),
        "steps": draw(st.integers(1, 8)),
        "sim_temperature": draw(st.floats(0.1, 3)),
        "graph_temperature": draw(st.floats(0.05, 3)),
        "self_bias": draw(st.floats(-3, 6)),
    }
    return v, batch, options


@pytest.fixture(params=["kept", "recomputed"])
def small_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of five rows, so that small graphs have many and a last one cut short."""
    monkeypatch.setattr(graph, "TILE_ROWS", 5)
    if request.param == "recomputed":
        monkeypatch.setattr(graph, "KEEP_NODES", 0)


@pytest.mark.usefixtures("small_tiles")
def test_diagonal_kept_is_exact_for_any_rows() -> None:
    @settings(deadline=None, max_examples=80)
    @given(problems(), st.floats(0.1, 5))
    def check(problem: tuple[Tensor, int, dict[str, Any]], scale: float) -> None:
        v, batch, options = problem
        v, options["diagonal"] = scale * v, "keep"
        thin, thin_gradient = evaluate(v, batch, unit=False, exact="thin", **options)
        dense, dense_gradient = evaluate(v, batch, unit=False, exact="dense", **options)
        value_floor, gradient_floor = rounding(v, options)
        assert thin == pytest.approx(dense, rel=1e-9, abs=value_floor)
        assert (thin_gradient - dense_gradient).norm() <= 1e-9 * dense_gradient.norm() + gradient_floor

    check()


@pytest.mark.usefixtures("small_tiles")
def test_diagonal_dropped_is_exact_on_the_sphere() -> None:
    @settings(deadline=None, max_examples=80)
    @given(problems())
    def check(problem: tuple[Tensor, int, dict[str, Any]]) -> None:
        v, batch, options = problem
        v = normalize(v)
        thin, thin_gradient = evaluate(v, batch, unit=True, exact="thin", **options)
        dense, dense_gradient = evaluate(v, batch, unit=True, exact="dense", **options)
        value_floor, gradient_floor = rounding(v, options)
        assert dense - thin == pytest.approx(left_out(v, batch, options), rel=1e-9, abs=value_floor)
        assert (thin_gradient - dense_gradient).norm() <= 1e-9 * dense_gradient.norm() + gradient_floor

    check()


@pytest.mark.parametrize("nodes", [254, 512])
def test_float32_at_working_size(nodes: int) -> None:
    v = torch.randn(nodes, 64, generator=torch.Generator().manual_seed(0))
    _, thin = evaluate(v, nodes // 2, unit=True, exact="thin")
    _, dense = evaluate(v, nodes // 2, unit=True, exact="dense")
    assert thin.dtype == torch.float32
    assert (thin - dense).norm() <= 1e-5 * dense.norm()


@pytest.mark.parametrize("exact", ["thin", "dense"])
@pytest.mark.parametrize("norm", [1e2, 1e4, 1e8])
def test_long_raw_rows_do_not_overflow(exact: str, norm: float) -> None:
    v = norm * normalize(torch.randn(20, 6, generator=torch.Generator().manual_seed(3)))
    loss, gradient = evaluate(v, 10, unit=False, exact=exact, diagonal="keep")
    assert 0 <= loss < float("inf")
    assert gradient.isfinite().all()
    # At such norms G = I and softplus(u) = max(u, 0), so the loss can be written down.
    positive = (v @ v.T / 0.5).clamp(min=0)
    expected = (positive.sum() - positive.trace()) / 400
    assert loss == pytest.approx(expected.item(), rel=1e-5)


def test_upstream_gradient_scales_the_result() -> None:
    z = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _, once = evaluate(z, 3, unit=False, diagonal="keep")
    x = z.clone().requires_grad_()
    (thrice,) = torch.autograd.grad(3 * contrast_loss(x[:3], x[3:], diagonal="keep"), x)
    torch.testing.assert_close(thrice, 3 * once)


def test_autograd_records_nothing_of_size_n_by_n() -> None:
    nodes = 300
    z = normalize(torch.randn(nodes, 4)).requires_grad_()
    saved: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        torch.autograd.grad(contrast_loss(z[:150], z[150:]), z)
    assert saved and max(saved) <= nodes * 4


def test_autocast_does_not_reach_the_graph() -> None:
    z = normalize(torch.randn(16, 8, generator=torch.Generator().manual_seed(0)))
    for exact in ("thin", "dense"):
        expected = contrast_loss(z[:8], z[8:], exact=exact)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(contrast_loss(z[:8], z[8:], exact=exact), expected)


def test_what_thin_cannot_do_is_refused() -> None:
    z = normalize(torch.randn(4, 3))
    with pytest.raises(ValueError, match="swapped"):
        contrast_loss(z, z, cross="swapped")
    with pytest.raises(ValueError, match="unit-norm"):
        contrast_loss(1.01 * z, z)
