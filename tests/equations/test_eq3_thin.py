"""Eq. (3): the thin form is the dense form, in value (up to the stated constant) and in gradient."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode

from unissl.ops import thin_graph
from unissl.ops.graph import affinity_scale, contrast_loss, relational_embedding, structural_consensus
from unissl.ops.simplex import simplex_anchors
from unissl.ops.thin_graph import GraphSettings, ThinContrast, thin_contrast


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


@pytest.fixture(params=["kept", "recomputed", "kept, any length", "recomputed, any length"])
def small_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of five rows at most, so that small graphs have many, of unequal sizes."""
    monkeypatch.setattr(thin_graph, "TILE", 5)
    if "recomputed" in request.param:
        monkeypatch.setattr(thin_graph, "KEEP_BYTES", 0)
    if "any length" in request.param:
        monkeypatch.setattr(thin_graph, "LARGEST_EXPONENT", -1.0)


@pytest.mark.usefixtures("small_tiles")
def test_diagonal_kept_is_exact_for_any_rows() -> None:
    @settings(deadline=None, max_examples=80)
    @given(problems(), st.none() | st.floats(0.1, 5))
    def check(problem: tuple[Tensor, int, dict[str, Any]], scale: float | None) -> None:
        v, batch, options = problem
        v, options["diagonal"] = normalize(v) if scale is None else scale * v, "keep"
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


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("nodes", [6, thin_graph.TILE, thin_graph.TILE + 2, 2 * thin_graph.TILE + 6])
def test_tiles_of_full_size(nodes: int, views: int) -> None:
    """Fewer nodes than a tile has rows, as many, a few more, and no multiple of it."""
    v = torch.randn(nodes, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    thin, thin_gradient = evaluate(v, nodes // views, unit=True, diagonal="keep", exact="thin")
    dense, dense_gradient = evaluate(v, nodes // views, unit=True, diagonal="keep", exact="dense")
    assert thin == pytest.approx(dense, rel=1e-9)
    assert (thin_gradient - dense_gradient).norm() <= 1e-9 * dense_gradient.norm()


@pytest.mark.parametrize("nodes", [254, 512, 896])
def test_float32_at_working_size(nodes: int) -> None:
    v = torch.randn(nodes, 64, generator=torch.Generator().manual_seed(0))
    _, thin = evaluate(v, nodes // 2, unit=True, exact="thin")
    _, dense = evaluate(v, nodes // 2, unit=True, exact="dense")
    _, exact = evaluate(v.double(), nodes // 2, unit=True, exact="dense")
    assert thin.dtype == torch.float32
    assert (thin - dense).norm() <= 1e-6 * dense.norm()
    assert (thin - exact).norm() <= 5e-7 * exact.norm()


@pytest.mark.parametrize("bound", [10.0, math.inf])
@pytest.mark.parametrize("drop", [False, True])
def test_backward_is_the_derivative_of_the_value(drop: bool, bound: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradcheck of the function itself: G is a matter of a alone, so holding a fixed is the stop-gradient."""
    monkeypatch.setattr(thin_graph, "TILE", 3)
    v = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    a = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def value(v: Tensor) -> Tensor:
        z = normalize(v) if drop else v
        loss: Tensor = ThinContrast.apply(z, a, GraphSettings(4, 0.5, 1.5, 3, drop, None, bound))
        return loss

    assert torch.autograd.gradcheck(value, [v])


def test_similarities_from_affinities_are_the_same() -> None:
    """Where a is a multiple of z, U may be taken from A."""
    z = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    a = z.detach() / math.sqrt(1.5)
    results = []
    for ratio in (None, 3.0):
        loss = thin_contrast(z, a, GraphSettings(7, 0.5, 1.0, 3, drop=False, ratio=ratio, bound=20.0))
        results.append((loss, torch.autograd.grad(loss, z)))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-15)


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


@pytest.mark.parametrize("temperatures", [(0.005, 0.25), (0.5, 0.005), (1e-6, 1e-6)])
def test_sharp_temperatures_do_not_overflow(temperatures: tuple[float, float]) -> None:
    """exp of 1/t is beyond float32 there; the last walk never leaves its node."""
    v = torch.randn(20, 6, generator=torch.Generator().manual_seed(3))
    options = {"sim_temperature": temperatures[0], "graph_temperature": temperatures[1]}
    thin, thin_gradient = evaluate(v, 10, unit=True, exact="thin", **options)
    _, expected = evaluate(v.double(), 10, unit=True, exact="dense", **options)
    assert math.isfinite(thin)
    assert (thin_gradient - expected).norm() <= 1e-4 * expected.norm()


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


MEMORY = """
import resource, torch
from torch.nn.functional import normalize
from unissl.ops.graph import contrast_loss

torch.set_num_threads(1)

def grow(nodes):
    z = normalize(torch.randn(nodes, 32)).requires_grad_()
    contrast_loss(z[: nodes // 2], z[nodes // 2 :], steps=1).backward()

grow(64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
grow(16384)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count peak memory in other units")
def test_memory_of_16384_nodes_is_far_below_one_matrix() -> None:
    """Kilobytes by which a fresh process grows. One step of the walk takes all the memory that the fifth takes."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    matrix = 16384**2 * 4 / 1024
    assert int(done.stdout) < matrix / 4


class RefuseToWait(TorchDispatchMode):
    """Raises where the host asks a device for a number."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default or func is torch.ops.aten.nonzero.default:
            raise RuntimeError("waits for the device")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("exact", ["thin", "dense"])
def test_nothing_waits_for_the_device(exact: Any) -> None:
    z = normalize(torch.randn(8, 3)).requires_grad_()
    for diagonal in ("drop", "keep"):
        with RefuseToWait():
            contrast_loss(z[:4], z[4:], diagonal=diagonal, exact=exact, unit=True).backward()
    with RefuseToWait():
        contrast_loss(z[:4], z[4:], diagonal="keep", exact=exact, unit=False).backward()
    with pytest.raises(RuntimeError, match="waits for the device"), RefuseToWait():
        contrast_loss(z[:4], z[4:])  # looking at the norms does wait


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
    with pytest.raises(ValueError, match="unit-norm"):
        contrast_loss(z, z, unit=False)
