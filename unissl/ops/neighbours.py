"""Label spreading: predictions for a pool smoothed over nearest neighbours.

With unit rows x_i and their k nearest neighbours by cosine, s_ij = max(x_i . x_j, 0)^3 b_ij for j among those of i and
0 elsewhere, b_ij = sum_c sqrt(p_ic p_jc) the agreement of the predictions p for the two (Bhattacharyya's coefficient),
W = S + S', D the row sums of W:

    F_0 = Y,    F_{t+1} = a D^-1/2 W D^-1/2 F_t + (1 - a) Y

which is label spreading (Zhou et al., 2004) with the predictions Y of a classifier in place of one-hot labels.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

BLOCK = 1024
"""Rows whose similarities to all others are in memory at once."""
POWER = 3
"""Makes near neighbours count for more than those that are just among the k."""

Floats = npt.NDArray[np.float64]


def nearest(features: Tensor, k: int, *, overwrite: bool = False) -> tuple[Tensor, Tensor]:
    """Row numbers (n, k) and cosines (n, k) of the nearest other rows of features (n, D), the nearest first.

    With ``overwrite`` the features are normalised in place, which saves a copy of them.
    """
    unit = torch.nn.functional.normalize(features, dim=1, out=features if overwrite else None)
    indices, cosines = [], []
    for start in range(0, len(unit), BLOCK):
        similar = unit[start : start + BLOCK] @ unit.T
        row = torch.arange(len(similar))
        similar[row, row + start] = -torch.inf
        best = similar.topk(min(k, len(unit) - 1), dim=1)
        indices.append(best.indices)
        cosines.append(best.values)
    return torch.cat(indices), torch.cat(cosines)


def agreement(probs: Floats, indices: Tensor) -> Floats:
    """b (n, k) of the probabilities (n, C) of every row and of each of its neighbours: 1 if they are the same."""
    roots, near = np.sqrt(probs), indices.numpy()
    return np.stack([(roots * roots[near[:, rank]]).sum(1) for rank in range(near.shape[1])], 1)


def transition(indices: Tensor, cosines: Tensor, agreed: Floats | None = None) -> sparse.csr_array:
    """D^-1/2 W D^-1/2 of the graph that connects every row with its neighbours; without ``agreed`` b is 1."""
    n, k = indices.shape
    weights = cosines.clamp(min=0).double().numpy() ** POWER
    weights = weights if agreed is None else weights * agreed
    one_way = sparse.csr_array((weights.ravel(), (np.repeat(np.arange(n), k), indices.numpy().ravel())), shape=(n, n))
    both_ways = one_way + one_way.T
    scale = 1 / np.sqrt(np.maximum(both_ways.sum(axis=1), 1e-12))  # a row without neighbours keeps its prediction
    return sparse.csr_array(both_ways.multiply(scale[:, None]).multiply(scale[None, :]))


def spread_labels(probs: Floats, matrix: sparse.csr_array, *, share: float = 0.8, rounds: int = 20) -> Floats:
    """F after so many rounds of the ``matrix`` of :func:`transition`, as probabilities (n, C); ``share`` is a."""
    spread = probs
    for _ in range(rounds):
        spread = share * (matrix @ spread) + (1 - share) * probs
    total: Floats = spread / np.maximum(spread.sum(1, keepdims=True), 1e-12)
    return total
