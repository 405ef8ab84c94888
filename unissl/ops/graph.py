"""Graph-state relational inference (GRI): samples as nodes, anchors as coordinates, a random walk as teacher.

| symbol | here | equation |
|---|---|---|
| a_i, relational embedding | :func:`relational_embedding` | (1), (2) |
| A = a a^T, structural affinity | ``affinity`` | text after (2) |
| G = softmax(A)^beta, structural consensus | :func:`structural_consensus` | text before (3) |
| L_con | :func:`contrast_loss` | (3) |
| L_sim | :func:`consistency_loss` | (4) |

With tight anchors, ``P^T P = c I``, the affinity is the Gram matrix of z times ``s = c/(c + lambda)^2``: the anchors
act on the graph only through that number, and their orientation and seed not at all.

L_con comes in two forms. *Dense* writes down the n x n matrices: O(n^3 log beta) time, O(n^2) memory. *Thin* uses that
the loss and its gradient need G only through ``G Z`` and ``G^T Z``, which are beta products of the transition matrix
with an (n, d) matrix: O(beta n^2 d) time and, tile by tile, O(n d) memory. It is exact, not an approximation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

TILE_ROWS = 256
"""Rows of an n x n matrix that the thin form holds at a time."""

KEEP_NODES = 2048
"""Up to this many nodes the thin form keeps the transition matrix (16 MB in float32) instead of recomputing it."""


def relational_embedding(z: Tensor, anchors: Tensor, ridge: float) -> Tensor:
    """a = z P^T (P P^T + lambda I)^-1, (n, K): the minimiser of |z - aP|^2 + lambda |a|^2, Eq. (1)."""
    if ridge <= 0:
        raise ValueError("the ridge must be positive: P P^T alone has no inverse")
    anchors = anchors.to(z)
    gram = anchors @ anchors.T
    gram.diagonal().add_(ridge)
    solution: Tensor = torch.linalg.solve(gram, anchors @ z.T)  # Eq. (2), transposed; the Gram matrix is symmetric
    return solution.T


def affinity_scale(dim: int, count: int, ridge: float) -> float:
    """s with <a_i, a_j> = s <z_i, z_j> for the K = ``count`` anchors of :func:`unissl.ops.simplex.simplex_anchors`.

    For K < d + 1 it holds for the parts of z in the (K-1)-dimensional span of the anchors.
    """
    tightness = count / (count - 1) if count <= dim + 1 else count / dim
    return tightness / (tightness + ridge) ** 2


def structural_consensus(affinity: Tensor, steps: int) -> Tensor:
    """G = softmax(A)^beta, (n, n): where a random walk of ``steps`` steps along the affinities ends, row by row."""
    if steps < 1:
        raise ValueError("the walk needs at least one step")
    consensus: Tensor = torch.linalg.matrix_power(affinity.softmax(-1), steps)
    return consensus


def consistency_loss(z_weak: Tensor, z_strong: Tensor, f_weak: Tensor, f_strong: Tensor) -> Tensor:
    """L_sim, Eq. (4): each view's projection z (n, d) points where the other view's feature f (n, d) does."""
    weak_to_strong = functional.cosine_similarity(z_weak, f_strong.detach())
    strong_to_weak = functional.cosine_similarity(z_strong, f_weak.detach())
    return -(weak_to_strong + strong_to_weak).mean()


def contrast_loss(
    z_weak: Tensor,
    z_strong: Tensor,
    *,
    anchors: Tensor | None = None,
    ridge: float = 0.1,
    steps: int = 5,
    sim_temperature: float = 0.5,
    graph_temperature: float = 0.25,
    self_bias: float = 2.0,
    cross: Literal["stacked", "swapped"] = "stacked",
    diagonal: Literal["drop", "keep"] = "drop",
    exact: Literal["thin", "dense"] = "thin",
) -> Tensor:
    """L_con = BCE(S, sg[G]), Eq. (3): similar pairs are those between which the graph's random walk goes.

    The nodes are the rows of both views, (B, d) each, taken as they are; an empty ``z_strong`` (0, d) leaves the weak
    views alone. S has the logits ``<z_i, z_j> / sim_temperature``, G those of the affinity over ``graph_temperature``.
    The gradient goes through S only. Unit temperatures, no bias and the diagonal kept are the paper's text.

    Args:
        z_weak: Projections of the weak views.
        z_strong: Projections of the strong views of the same samples, in the same order, or nothing.
        anchors: P (K, d); None stands for the K = d + 1 simplex in its scalar form.
        ridge: lambda of Eq. (1).
        steps: beta, the length of the walk.
        sim_temperature: Divides the similarities.
        graph_temperature: Divides the affinities.
        self_bias: Added to the affinity of a node with itself and with the other view of itself.
        cross: Order of the weak-strong blocks. "stacked" is the Gram matrix of [weak; strong]; "swapped" exchanges the
            two blocks as the released code does, and exists in dense form only.
        diagonal: "drop" leaves the pairs (i, i) out and averages over n(n-1) entries, "keep" averages over n^2.
        exact: "thin" or "dense", see the top of this file. Thin with a dropped diagonal wants unit-norm rows; its
            gradient is then exact along the sphere, and its value lacks the constant
            ``tr(G) / (sim_temperature n (n-1))``, about 1e-4 at n = 896.
    """
    _check_choice("cross", cross, "stacked", "swapped")
    _check_choice("diagonal", diagonal, "drop", "keep")
    _check_choice("exact", exact, "thin", "dense")
    if len(z_strong) not in (0, len(z_weak)):
        raise ValueError("z_strong must have as many rows as z_weak, or none")
    if len(z_weak) + len(z_strong) < (2 if diagonal == "drop" else 1):
        raise ValueError("a graph without pairs has no contrast loss; give it more rows")
    if steps < 1:
        raise ValueError("the walk needs at least one step")
    drop = diagonal == "drop"
    # Entries of G are of order 1/n: too fine for the half precision that autocast would choose.
    with torch.autocast(z_weak.device.type, enabled=False):
        a_weak, a_strong = (_node_coordinates(z, anchors, ridge, graph_temperature) for z in (z_weak, z_strong))
        if exact == "dense":
            similarity = _pair_products(z_weak, z_strong, cross) / sim_temperature
            affinity = _pair_products(a_weak, a_strong, cross)
            return _dense_contrast(similarity, affinity, len(z_weak), self_bias, steps, drop)
        z, a = torch.cat([z_weak, z_strong]), torch.cat([a_weak, a_strong])
        if cross == "swapped":
            raise ValueError("swapped cross blocks are not the Gram matrix of one z; use exact='dense'")
        # Rows that are not finite pass: a run that diverges is stopped by its loss, not by this check.
        if drop and bool(((z.norm(dim=1) - 1).abs() > 1e-4).any()):
            raise ValueError("the thin form drops the diagonal of unit-norm rows only; normalise z, or exact='dense'")
        settings = (len(z_weak), sim_temperature, self_bias, steps, drop)
        loss: Tensor = _ThinContrast.apply(z, a, *settings)  # type: ignore[no-untyped-call]
        return loss


def _check_choice(name: str, value: str, *known: str) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {known}, not {value!r}")


@torch.no_grad()
def _node_coordinates(z: Tensor, anchors: Tensor | None, ridge: float, temperature: float) -> Tensor:
    """Rows whose inner products are the affinities over the temperature; no gradient, since G is a fixed target."""
    if anchors is not None:
        return relational_embedding(z, anchors, ridge) / math.sqrt(temperature)
    dim = z.shape[1]
    return z * math.sqrt(affinity_scale(dim, dim + 1, ridge) / temperature)


def _pair_products(weak: Tensor, strong: Tensor, cross: str) -> Tensor:
    """Inner products of all nodes, (n, n). "swapped" has <strong_i, weak_j> in the place of <weak_i, strong_j>."""
    upper, lower = weak @ strong.T, strong @ weak.T
    if cross == "swapped":
        upper, lower = lower, upper
    return torch.cat([torch.cat([weak @ weak.T, upper], 1), torch.cat([lower, strong @ strong.T], 1)])


def _add_self_bias(affinity: Tensor, first: int, batch: int, bias: float) -> Tensor:
    """Add the bias to rows ``first``, ``first + 1``, ... where node i meets a view of its own sample: i, i +- batch."""
    rows = torch.arange(len(affinity), device=affinity.device)
    nodes = affinity.shape[1]
    for shift in range(0, nodes, batch):
        affinity[rows, (rows + first + shift) % nodes] += bias
    return affinity


def _dense_contrast(
    similarity: Tensor, affinity: Tensor, batch: int, self_bias: float, steps: int, drop_diagonal: bool
) -> Tensor:
    """Eq. (3) as it is written, on whole matrices."""
    consensus = structural_consensus(_add_self_bias(affinity, 0, batch, self_bias), steps)
    if drop_diagonal:
        pairs = ~torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
        similarity, consensus = similarity[pairs], consensus[pairs]
    return functional.binary_cross_entropy_with_logits(similarity, consensus)  # Eq. (3)


class _ThinContrast(torch.autograd.Function):
    """Eq. (3) without an n x n matrix. With U = Z Z^T / t (t the similarity temperature) and T the transition matrix,

        sum_ij BCE(S_ij, G_ij) = sum_ij softplus(U_ij) - <Z, G Z> / t
        its gradient in Z      = (2 sigmoid(U) Z - G Z - G^T Z) / t,      G = T^beta.

    The value needs nearly the same sweeps as the gradient, so both are computed forward and backward only scales. The
    diagonal of unit-norm rows is constant: dropping it takes n softplus(1/t) off the value and nothing off the gradient
    along the sphere. Its part in <Z, G Z>, tr(G)/t, is the constant that stays in.
    """

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        a: Tensor,
        batch: int,
        temperature: float,
        self_bias: float,
        steps: int,
        drop_diagonal: bool,
    ) -> Tensor:
        walked, walked_back = _walk(z, a, batch, self_bias, steps)  # G Z, G^T Z
        total, pushed = _softplus_sweep(z, temperature)
        total = total - (z * walked).sum() / temperature
        entries = len(z) ** 2
        if drop_diagonal:
            total = total - _softplus((z * z).sum(1) / temperature).sum()
            entries -= len(z)
        ctx.save_for_backward((2 * pushed - walked - walked_back) / (temperature * entries))
        return total / entries

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return grad_output * gradient, None, None, None, None, None, None


def _walk(z: Tensor, a: Tensor, batch: int, self_bias: float, steps: int) -> tuple[Tensor, Tensor]:
    """G Z and G^T Z, (n, d) each: one sweep over the rows of T takes both a step further."""
    kept = list(_transition_tiles(a, batch, self_bias)) if len(a) <= KEEP_NODES else None
    forth, back = z, z
    for _ in range(steps):
        next_forth, next_back = torch.empty_like(z), torch.zeros_like(z)
        for first, tile in kept or _transition_tiles(a, batch, self_bias):
            rows = slice(first, first + len(tile))
            next_forth[rows] = tile @ forth
            next_back.addmm_(tile.T, back[rows])
        forth, back = next_forth, next_back
    return forth, back


def _transition_tiles(a: Tensor, batch: int, self_bias: float) -> Iterator[tuple[int, Tensor]]:
    """T = row softmax of the biased affinities, as (index of the first row, a few whole rows)."""
    for first in range(0, len(a), TILE_ROWS):
        affinity = a[first : first + TILE_ROWS] @ a.T
        yield first, _add_self_bias(affinity, first, batch, self_bias).softmax(1)


def _softplus_sweep(z: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The sum of softplus(U) and sigmoid(U) Z, (n, d)."""
    totals, pushed = [], torch.empty_like(z)
    for first in range(0, len(z), TILE_ROWS):
        rows = slice(first, first + TILE_ROWS)
        similarity = z[rows] @ z.T / temperature
        totals.append(_softplus(similarity).sum())
        pushed[rows] = similarity.sigmoid_() @ z
    return torch.stack(totals).sum(), pushed


def _softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) to full precision; torch's own softplus turns linear at 20."""
    return -functional.logsigmoid(-x)
