"""Eq. (3): the structural contrastive loss in dense form against nested Python loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from unissl.ops.graph import contrast_loss, structural_consensus
from unissl.ops.simplex import simplex_anchors

Matrix = list[list[float]]


def consensus_by_loops(affinity: Matrix, steps: int) -> Matrix:
    """Row softmax, then one multiplication per step."""
    n = len(affinity)
    transition = []
    for row in affinity:
        top = max(row)
        weights = [math.exp(value - top) for value in row]
        transition.append([weight / sum(weights) for weight in weights])
    power = [[float(i == j) for j in range(n)] for i in range(n)]
    for _ in range(steps):
        power = [[sum(power[i][k] * transition[k][j] for k in range(n)) for j in range(n)] for i in range(n)]
    return power


def contrast_by_loops(
    weak: Matrix,
    strong: Matrix,
    anchors: Tensor,
    ridge: float,
    steps: int,
    sim_temperature: float,
    graph_temperature: float,
    self_bias: float,
    cross: str,
    diagonal: str,
) -> float:
    p = anchors.double()
    inverse = torch.linalg.inv(p @ p.T + ridge * torch.eye(len(p), dtype=torch.float64))
    views = [weak, strong] if strong else [weak]
    embedded = [(torch.tensor(view, dtype=torch.float64) @ p.T @ inverse).tolist() for view in views]
    batch, n = len(weak), len(weak) + len(strong)

    def product(source: list[Matrix], i: int, j: int) -> float:
        view_i, view_j = i // batch, j // batch
        if cross == "swapped" and view_i != view_j:
            view_i, view_j = view_j, view_i
        return sum(x * y for x, y in zip(source[view_i][i % batch], source[view_j][j % batch], strict=True))

    affinity = [[product(embedded, i, j) / graph_temperature for j in range(n)] for i in range(n)]
    for i in range(n):
        for j in range(n):
            affinity[i][j] += self_bias * (i % batch == j % batch)
    consensus = consensus_by_loops(affinity, steps)
    terms = []
    for i in range(n):
        for j in range(n):
            if i == j and diagonal == "drop":
                continue
            s = 1 / (1 + math.exp(-product(views, i, j) / sim_temperature))
            terms.append(-consensus[i][j] * math.log(s) - (1 - consensus[i][j]) * math.log(1 - s))
    return sum(terms) / len(terms)


def unit_rows(n: int, dim: int, seed: int) -> Tensor:
    return normalize(torch.randn(n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("cross", ["stacked", "swapped"])
@pytest.mark.parametrize("diagonal", ["drop", "keep"])
@pytest.mark.parametrize(
    ("batch", "dim", "count", "steps", "sim", "graph", "bias"),
    [
        (1, 2, 3, 1, 1.0, 1.0, 0.0),
        (3, 4, 5, 5, 0.5, 0.25, 2.0),
        (4, 6, 3, 3, 1.0, 0.5, 2.0),
        (5, 3, 9, 2, 0.7, 0.3, -1.0),
    ],
)
def test_dense_equals_loops(
    cross: Any, diagonal: Any, batch: int, dim: int, count: int, steps: int, sim: float, graph: float, bias: float
) -> None:
    weak, strong = unit_rows(batch, dim, 1), unit_rows(batch, dim, 2)
    anchors = simplex_anchors(dim, count)
    expected = contrast_by_loops(weak.tolist(), strong.tolist(), anchors, 0.1, steps, sim, graph, bias, cross, diagonal)
    options: dict[str, Any] = {
        "steps": steps,
        "sim_temperature": sim,
        "graph_temperature": graph,
        "self_bias": bias,
        "cross": cross,
        "diagonal": diagonal,
        "exact": "dense",
    }
    assert contrast_loss(weak, strong, anchors=anchors, **options).item() == pytest.approx(expected, rel=1e-9)
    if count == dim + 1:
        scalar_form = contrast_loss(weak, strong, **options).item()
        assert scalar_form == pytest.approx(expected, rel=1e-6)  # the anchors are rounded to float32


def test_paper_form_on_raw_weak_views_alone() -> None:
    weak = 2 * unit_rows(5, 3, 4)
    expected = contrast_by_loops(weak.tolist(), [], simplex_anchors(3), 0.1, 5, 1.0, 1.0, 0.0, "stacked", "keep")
    for exact in ("thin", "dense"):
        loss = contrast_loss(
            weak, weak[:0], sim_temperature=1.0, graph_temperature=1.0, self_bias=0.0, diagonal="keep", exact=exact
        )
        assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_bias_on_weak_views_alone_counts_once() -> None:
    weak = unit_rows(4, 3, 4)
    expected = contrast_by_loops(weak.tolist(), [], simplex_anchors(3), 0.1, 2, 0.5, 0.25, 2.0, "stacked", "keep")
    for exact in ("thin", "dense"):
        loss = contrast_loss(weak, weak[:0], steps=2, diagonal="keep", exact=exact)
        assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_consensus_is_a_random_walk() -> None:
    affinity = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for steps in (1, 2, 5):
        expected = torch.tensor(consensus_by_loops(affinity.tolist(), steps), dtype=torch.float64)
        torch.testing.assert_close(structural_consensus(affinity, steps), expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(expected.sum(1), torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(structural_consensus(torch.zeros(4, 4), 3), torch.full((4, 4), 0.25))
    with pytest.raises(ValueError, match="at least one step"):
        structural_consensus(affinity, 0)


def test_gradient_goes_through_the_similarities_only() -> None:
    """The analytic gradient equals finite differences of Eq. (3) with G frozen, and not those with G moving."""
    z = unit_rows(4, 3, 7)
    anchors = simplex_anchors(3).double()
    p = anchors.T @ torch.linalg.inv(anchors @ anchors.T + 0.1 * torch.eye(4, dtype=torch.float64))
    target = structural_consensus((z @ p) @ (z @ p).T, 5)

    def frozen(x: Tensor) -> Tensor:
        s = torch.sigmoid(x @ x.T)
        return -(target * s.log() + (1 - target) * (1 - s).log()).mean()

    def paper(x: Tensor) -> Tensor:
        return contrast_loss(
            x, x[:0], sim_temperature=1.0, graph_temperature=1.0, self_bias=0.0, diagonal="keep", exact="dense"
        )

    def differences(loss: Any) -> Tensor:
        slopes = torch.zeros_like(z)
        for i in range(z.shape[0]):
            for j in range(z.shape[1]):
                step = torch.zeros_like(z)
                step[i, j] = 1e-5
                slopes[i, j] = (loss(z + step) - loss(z - step)) / 2e-5
        return slopes

    x = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(paper(x), x)
    torch.testing.assert_close(gradient, differences(frozen), rtol=1e-6, atol=1e-7)
    assert (gradient - differences(paper)).abs().max() > 1e-4


def test_wrong_arguments_are_refused() -> None:
    z = unit_rows(3, 4, 0)
    with pytest.raises(ValueError, match="as many rows"):
        contrast_loss(z, z[:2])
    with pytest.raises(ValueError, match="without pairs"):
        contrast_loss(z[:1], z[:0])
    with pytest.raises(ValueError, match="at least one step"):
        contrast_loss(z, z, steps=0)
    with pytest.raises(ValueError, match="diagonal must be one of"):
        contrast_loss(z, z, diagonal="droop")  # type: ignore[arg-type]
