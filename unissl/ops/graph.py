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

L_con comes in two forms. *Dense* writes down the n x n matrices: O(n^3 log beta) time, O(n^2) memory. *Thin*, in
:mod:`unissl.ops.thin_graph`, needs no such matrix: O(beta n^2 d) time, O(n d) memory. Both are exact.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from unissl.ops.thin_graph import GraphSettings, add_self_bias, thin_contrast

UNIT_TOLERANCE = 1e-4
"""How far from 1 the length of a unit-norm row may be."""


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
    unit: bool | None = None,
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
        exact: "thin" or "dense", see the top of this file. Thin with a dropped diagonal needs unit-norm rows; its
            gradient is then exact along the sphere, and its value lacks the constant
            ``tr(G) / (sim_temperature n (n-1))``, about 1e-4 at n = 896.
        unit: Whether the rows have unit norm, which the thin form makes use of. None tests them, which
            makes a GPU wait; a caller that knows passes it.
    """
    known = {"cross": ("stacked", "swapped"), "diagonal": ("drop", "keep"), "exact": ("thin", "dense")}
    for name, value in {"cross": cross, "diagonal": diagonal, "exact": exact}.items():
        if value not in known[name]:
            raise ValueError(f"{name} must be one of {known[name]}, not {value!r}")
    if len(z_strong) not in (0, len(z_weak)):
        raise ValueError("z_strong must have as many rows as z_weak, or none")
    if len(z_weak) + len(z_strong) < (2 if diagonal == "drop" else 1):
        raise ValueError("a graph without pairs has no contrast loss; give it more rows")
    if steps < 1:
        raise ValueError("the walk needs at least one step")
    drop = diagonal == "drop"
    # Entries of G are of order 1/n: too fine for the half precision that autocast would choose.
    with torch.autocast(z_weak.device.type, enabled=False):
        z, batch = torch.cat([z_weak, z_strong]), len(z_weak)
        a = _node_coordinates(z, anchors, ridge, graph_temperature)
        if exact == "dense":
            similarity = _pair_products(z_weak, z_strong, cross) / sim_temperature
            affinity = _pair_products(a[:batch], a[batch:], cross)
            return _dense_contrast(similarity, affinity, batch, self_bias, steps, drop)
        if cross == "swapped":
            raise ValueError("swapped cross blocks are not the Gram matrix of one z; use exact='dense'")
        unit = _looks_unit(z) if unit is None else unit
        if drop and not unit:
            raise ValueError("the thin form drops the diagonal of unit-norm rows only; normalise z, or exact='dense'")
        if anchors is None:
            scale = affinity_scale(z.shape[1], z.shape[1] + 1, ridge) / graph_temperature
            ratio, bound = 1 / (sim_temperature * scale), scale
        else:  # the singular values of P^T (P P^T + lambda I)^-1 are p / (p^2 + lambda), 1 / (2 sqrt(lambda)) at most
            ratio, bound = None, 1 / (4 * ridge * graph_temperature)
        bound = bound if unit else math.inf
        return thin_contrast(z, a, GraphSettings(batch, sim_temperature, self_bias, steps, drop, ratio, bound))


def _looks_unit(z: Tensor) -> bool:
    """Rows that are not finite pass: a run that diverges is stopped by its loss, not by this check."""
    return not bool(((z.detach().norm(dim=1) - 1).abs() > UNIT_TOLERANCE).any())


@torch.no_grad()
def _node_coordinates(z: Tensor, anchors: Tensor | None, ridge: float, temperature: float) -> Tensor:
    """Rows whose inner products are the affinities over the temperature; no gradient, since G is a fixed target."""
    if anchors is not None:
        return relational_embedding(z, anchors, ridge) / math.sqrt(temperature)
    dim = z.shape[1]
    return z * math.sqrt(affinity_scale(dim, dim + 1, ridge) / temperature)


def _pair_products(weak: Tensor, strong: Tensor, cross: str) -> Tensor:
    """Inner products of all nodes, (n, n). "swapped" has <strong_i, weak_j> in place of <weak_i, strong_j>."""
    upper, lower = weak @ strong.T, strong @ weak.T
    if cross == "swapped":
        upper, lower = lower, upper
    return torch.cat([torch.cat([weak @ weak.T, upper], 1), torch.cat([lower, strong @ strong.T], 1)])


def _dense_contrast(
    similarity: Tensor, affinity: Tensor, batch: int, self_bias: float, steps: int, drop_diagonal: bool
) -> Tensor:
    """Eq. (3) as it is written, on whole matrices."""
    consensus = structural_consensus(add_self_bias(affinity, 0, batch, self_bias), steps)
    if drop_diagonal:
        similarity, consensus = _off_diagonal(similarity), _off_diagonal(consensus)
    return functional.binary_cross_entropy_with_logits(similarity, consensus)  # Eq. (3)


def _off_diagonal(square: Tensor) -> Tensor:
    """The n(n-1) entries off the diagonal, (n-1, n), in order: in a line of all entries, every (n+1)th is on it."""
    n = len(square)
    return square.flatten()[1:].view(n - 1, n + 1)[:, :-1]
