"""Consensus of a pool: the labels of a few rows, spread over the nearest neighbours until nothing changes.

With S = D^-1/2 W D^-1/2 of the graph of :mod:`unissl.ops.neighbours`, and Y one-hot for labelled rows and 0 elsewhere,

    F = (1 - a) (I - a S)^-1 Y

the limit of label spreading (Zhou et al., 2004): F_ic is the mass of the walks from the labelled rows of class c that
end in row i. I - a S is symmetric and positive definite, so conjugate gradients solve it without an inverse: the graph
has k edges per row, and memory grows with n (k + C).
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from unissl.ops.neighbours import Floats, nearest, transition
from unissl.types import UNLABELLED, Labels

MAX_POOL = 100_000
"""Images of a pool whose consensus is computed: the search for neighbours takes time that grows with the square."""
K_NEIGHBOURS = 10
"""Neighbours of a row in the graph of its features."""

SHARE = 0.95
"""a, the share of a walk that goes on at each step."""
TOLERANCE = 1e-10
"""Residual relative to Y at which the solution stands: rows far from all labels have little mass, and it decides."""
MAX_ROUNDS = 500


def pool_consensus(labelled: Tensor, labels: Tensor, pool: Tensor, num_classes: int) -> Tensor:
    """Class probabilities (U, C) of a pool, from the features of labelled images (L, D) with ``labels`` (L,) and those
    of the pool (U, D); uniform for an image that no label reaches."""
    features = torch.cat([labelled, pool]).cpu()
    known = np.concatenate([labels.cpu().numpy(), np.full(len(pool), UNLABELLED)])
    graph = transition(*nearest(features, K_NEIGHBOURS))
    probs = torch.from_numpy(consensus_labels(graph, known, num_classes)[len(labelled) :])
    return probs.where(probs.sum(1, keepdim=True) > 0, 1 / num_classes)


def consensus_labels(graph: sparse.csr_array, labels: Labels, num_classes: int, share: float = SHARE) -> Floats:
    """Class probabilities (n, C) of the n rows of a graph (:func:`unissl.ops.neighbours.transition`) by the labels (n,)
    of some of them, negative where there is none.

    Rows that no walk reaches have 0 for all classes.
    """
    given = np.zeros((len(labels), num_classes))
    rows = np.flatnonzero(labels >= 0)
    given[rows, labels[rows]] = 1.0
    mass = np.maximum(spread_to_limit(given, graph, share), 0.0)  # the tolerance may leave some below 0
    total = mass.sum(1, keepdims=True)
    probs: Floats = np.divide(mass, total, out=np.zeros_like(mass), where=total > 0)
    return probs


def spread_to_limit(given: Floats, matrix: sparse.csr_array, share: float) -> Floats:
    """F (n, C) for Y = ``given`` (n, C) and S = ``matrix``, by conjugate gradients on all columns at once."""
    solution = np.zeros_like(given)
    residual = (1 - share) * given
    direction, squares = residual, (residual**2).sum(0)
    goal = TOLERANCE**2 * squares
    for _ in range(MAX_ROUNDS):
        if (squares <= goal).all():
            break
        image = direction - share * (matrix @ direction)
        curvature = (direction * image).sum(0)
        step = np.divide(squares, curvature, out=np.zeros_like(squares), where=curvature > 0)
        solution = solution + step * direction
        residual = residual - step * image
        after = (residual**2).sum(0)
        direction = residual + np.divide(after, squares, out=np.zeros_like(after), where=squares > 0) * direction
        squares = after
    return solution
