"""Answers smoothed over the nearest neighbours of a pool: what looks alike should be called alike.

With unit rows x_i and their k nearest neighbours by cosine, s_ij = max(x_i . x_j, 0)^3 b_ij for j among those of i and
0 elsewhere, b_ij = sum_c sqrt(p_ic p_jc) how far the answers p for the two agree (Bhattacharyya's coefficient),
W = S + S', D the row sums of W:

    F_0 = Y,    F_{t+1} = a D^-1/2 W D^-1/2 F_t + (1 - a) Y

which is label spreading (Zhou et al., 2004) with the answers Y of a classifier in place of labels alone.
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


def nearest(vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Places (n, k) and cosines (n, k) of the nearest other rows of vectors (n, D), the nearest first."""
    unit = torch.nn.functional.normalize(vectors, dim=1)
    places, cosines = [], []
    for start in range(0, len(unit), BLOCK):
        similar = unit[start : start + BLOCK] @ unit.T
        own = torch.arange(len(similar))
        similar[own, own + start] = -torch.inf
        best = similar.topk(min(k, len(unit) - 1), dim=1)
        places.append(best.indices)
        cosines.append(best.values)
    return torch.cat(places), torch.cat(cosines)


def agreement(answers: Floats, places: Tensor) -> Floats:
    """b (n, k) of the answers (n, C) for every row and for each of its neighbours: 1 where they are the same."""
    roots, near = np.sqrt(answers), places.numpy()
    return np.stack([(roots * roots[near[:, place]]).sum(1) for place in range(near.shape[1])], 1)


def walk(places: Tensor, cosines: Tensor, agreed: Floats | None = None) -> sparse.csr_array:
    """D^-1/2 W D^-1/2 of the graph that joins every row with its neighbours; without ``agreed`` b is 1."""
    n, k = places.shape
    weights = cosines.clamp(min=0).double().numpy() ** POWER
    weights = weights if agreed is None else weights * agreed
    one_way = sparse.csr_array((weights.ravel(), (np.repeat(np.arange(n), k), places.numpy().ravel())), shape=(n, n))
    both_ways = one_way + one_way.T
    scale = 1 / np.sqrt(np.maximum(both_ways.sum(axis=1), 1e-12))  # a row without neighbours keeps its answer
    return sparse.csr_array(both_ways.multiply(scale[:, None]).multiply(scale[None, :]))


def smoothed(answers: Floats, steps_of: sparse.csr_array, *, share: float = 0.8, rounds: int = 20) -> Floats:
    """F after so many rounds, as probabilities; ``share`` is a, the part that comes from the neighbours."""
    mixed = answers
    for _ in range(rounds):
        mixed = share * (steps_of @ mixed) + (1 - share) * answers
    total: Floats = mixed / np.maximum(mixed.sum(1, keepdims=True), 1e-12)
    return total
