"""L_con, Eq. (3), without a matrix of n x n: the loss and its gradient need G only through products with Z (n, d).

With U = Z Z^T / t (t the similarity temperature), A = a a^T the affinities over theirs, b the bias of a node with the
views of its own sample, and G = T^beta,

    sum_ij BCE(S_ij, G_ij) = sum_ij softplus(U_ij) - <Z, G Z> / t
    its gradient in Z      = (2 sigmoid(U) Z - G Z - G^T Z) / t.

| symbol | here | how |
|---|---|---|
| sum softplus(U), sigmoid(U) Z | :class:`_Similarities` | U is symmetric: the tiles on and above its diagonal do |
| E = exp(A + b), T = D^-1 E | :func:`_bounded_walk` | so is E; its row sums D normalise it |
| G Z, G^T Z = D G D^-1 Z | :func:`_bounded_walk` | beta products of E with [Z, D^-1 Z], (n, 2d) |
| the same for rows of any length | :func:`_unbounded_walk` | T from row softmax, where exp(A) could overflow |

O(beta n^2 d) time instead of O(n^3 log beta), and O(n d) memory: apart from (n, 2d) matrices there is a tile, and E up
to a fixed number of bytes, since keeping it saves a fifth of the work. Exact, not an approximation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

TILE = 512
"""Largest side of a tile of an n x n matrix; a tile of float32 and what is made of it stay in the processor's cache."""

KEEP_BYTES = 1 << 26
"""Up to this size E (its tiles on and above the diagonal) is kept for the walk; above, every step recomputes it."""

LARGEST_EXPONENT = 40.0
"""Up to this exponent the sums and products of exp(+-x) are far from the limits of float32."""


class GraphSettings(NamedTuple):
    """How L_con is computed."""

    batch: int
    """Rows of one view."""
    temperature: float
    """t, divides the similarities."""
    self_bias: float
    """b."""
    steps: int
    """beta."""
    drop: bool
    """Leave the diagonal out. Needs unit-norm z: there the diagonal is constant, so that it takes n softplus(1/t) off
    the value and nothing off the gradient along the sphere. Its part in <Z, G Z>, tr(G)/t, is a constant that stays."""
    ratio: float | None = None
    """U/A where a is a multiple of z, so that one product makes both."""
    bound: float = math.inf
    """Upper bound of the affinities."""


def thin_contrast(z: Tensor, a: Tensor, settings: GraphSettings) -> Tensor:
    """L_con of nodes z (n, d) whose affinities are the inner products of a (n, K); the gradient goes to z alone.

    The first ``settings.batch`` rows of z are one view; the others, if any, are the other view in the same order. ``a``
    are coordinates of the affinities, their temperature included.
    """
    loss: Tensor = ThinContrast.apply(z, a, settings)  # type: ignore[no-untyped-call]
    return loss


class ThinContrast(torch.autograd.Function):
    """Eq. (3). The value needs nearly all that the gradient does, so forward computes both and backward only scales."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, a: Tensor, settings: GraphSettings) -> Tensor:
        batch, temperature, self_bias, steps, drop, ratio, bound = settings
        similarities = _Similarities(z, temperature)
        if bound + abs(self_bias) <= LARGEST_EXPONENT:
            walked, walked_back = _bounded_walk(similarities, a, batch, self_bias, steps, ratio)
        else:
            walked, walked_back = _unbounded_walk(similarities, a, batch, self_bias, steps)
        total = similarities.total - (z * walked).sum() / temperature
        entries = len(z) ** 2
        if drop:
            total += functional.logsigmoid(-(z * z).sum(1) / temperature).sum()  # - softplus(U_ii)
            entries -= len(z)
        gradient = similarities.pushed.mul_(2).sub_(walked).sub_(walked_back).div_(temperature * entries)
        ctx.save_for_backward(gradient)
        return total / entries  # Eq. (3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return grad_output * gradient, None, None


def _tiles(nodes: int) -> list[tuple[slice, slice]]:
    """Rows and columns of the tiles on and above the diagonal of an n x n matrix, cut as evenly as possible."""
    count = math.ceil(nodes / TILE)
    spans = [slice(nodes * k // count, nodes * (k + 1) // count) for k in range(count)]
    return [(rows, columns) for k, rows in enumerate(spans) for columns in spans[k:]]


def _add_product(out: Tensor, tile: Tensor, rows: slice, columns: slice, x: Tensor) -> None:
    """Add to ``out`` the share that a tile and its mirror image have in the product of a symmetric matrix with x."""
    out[rows].addmm_(tile, x[columns])
    if rows != columns:
        out[columns].addmm_(tile.T, x[rows])


class _Similarities:
    """``total``, the sum of softplus(U), and ``pushed``, sigmoid(U) Z (n, d), gathered tile by tile."""

    def __init__(self, z: Tensor, temperature: float) -> None:
        self.z, self.scaled = z, z / temperature
        self.total, self.pushed = z.new_zeros(()), torch.zeros_like(z)

    def tile(self, rows: slice, columns: slice) -> Tensor:
        return self.scaled[rows] @ self.z[columns].T

    def add(self, similarity: Tensor, rows: slice, columns: slice) -> None:
        """Take in a tile of U, which is used up."""
        chance = similarity.sigmoid()
        _add_product(self.pushed, chance, rows, columns, self.z)
        # softplus(u) = max(u, 0) - log sigmoid(|u|), and sigmoid(|u|) = 1/2 + |sigmoid(u) - 1/2|.
        part = similarity.clamp_(min=0).sum() - chance.sub_(0.5).abs_().add_(0.5).log_().sum()
        self.total += part if rows == columns else 2 * part


def _bounded_walk(
    similarities: _Similarities, a: Tensor, batch: int, self_bias: float, steps: int, ratio: float | None
) -> tuple[Tensor, Tensor]:
    """G Z and G^T Z, (n, d) each, from the symmetric E, after a sweep that takes in the similarities."""
    z, tiles = similarities.z, _tiles(len(a))
    keep = sum((r.stop - r.start) * (c.stop - c.start) for r, c in tiles) * a.element_size() <= KEEP_BYTES
    kept, degree, ones = [], a.new_zeros(len(a), 1), a.new_ones(len(a), 1)
    for rows, columns in tiles:
        affinity = a[rows] @ a[columns].T
        similarities.add(similarities.tile(rows, columns) if ratio is None else ratio * affinity, rows, columns)
        weights = add_self_bias(affinity, rows.start - columns.start, batch, self_bias).exp_()
        _add_product(degree, weights, rows, columns, ones)  # D = E 1
        if keep:
            kept.append(weights)
    both, onward = torch.cat([z, z / degree], 1), z.new_empty(len(z), 2 * z.shape[1])  # [Z, D^-1 Z]
    for _ in range(steps):
        onward.zero_()
        for k, (rows, columns) in enumerate(tiles):
            if keep:
                weights = kept[k]
            else:
                weights = add_self_bias(a[rows] @ a[columns].T, rows.start - columns.start, batch, self_bias).exp_()
            _add_product(onward, weights, rows, columns, both)
        both, onward = onward.div_(degree), both
    forth, back = both.chunk(2, 1)
    return forth, back * degree


def add_self_bias(affinity: Tensor, offset: int, batch: int, bias: float) -> Tensor:
    """A tile of A with the bias added where a node meets a view of its own sample, itself or ``batch`` nodes away.

    ``offset`` is the first row of the tile less its first column.
    """
    height, width = affinity.shape
    for shift in (-batch, 0, batch):
        if -height < offset + shift < width:
            affinity.diagonal(offset + shift).add_(bias)
    return affinity


def _unbounded_walk(
    similarities: _Similarities, a: Tensor, batch: int, self_bias: float, steps: int
) -> tuple[Tensor, Tensor]:
    """G Z and G^T Z from rows of T: a sweep over them takes both a step further."""
    for rows, columns in _tiles(len(a)):
        similarities.add(similarities.tile(rows, columns), rows, columns)
    keep = len(a) ** 2 * a.element_size() <= KEEP_BYTES
    kept = list(_transition_rows(a, batch, self_bias)) if keep else None
    forth = back = similarities.z
    for _ in range(steps):
        next_forth, next_back = torch.empty_like(forth), torch.zeros_like(back)
        for rows, transition in kept or _transition_rows(a, batch, self_bias):
            next_forth[rows] = transition @ forth
            next_back.addmm_(transition.T, back[rows])
        forth, back = next_forth, next_back
    return forth, back


def _transition_rows(a: Tensor, batch: int, self_bias: float) -> Iterator[tuple[slice, Tensor]]:
    """T = row softmax of the biased affinities, a few whole rows at a time."""
    for first in range(0, len(a), TILE):
        rows = slice(first, first + TILE)
        yield rows, add_self_bias(a[rows] @ a.T, first, batch, self_bias).softmax(1)
