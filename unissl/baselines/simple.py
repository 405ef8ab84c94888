"""Logistic regression, nearest neighbours, and label spreading followed by logistic regression.

All three see the features that the method is trained on, and take seconds. A gain is reported over the best of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from unissl.ops import soft_regression
from unissl.ops.linear import LinearClassifier, rank_in_class
from unissl.ops.neighbours import nearest, spread_labels, transition
from unissl.types import UNLABELLED, Labels, Rows

LOGISTIC_REGRESSION = "logistic-regression"
NEAREST_NEIGHBOURS = "nearest-neighbours"
LABEL_SPREADING = "label-spreading"

STRENGTHS = (1.0, 0.1, 10.0)
"""Candidates for C, the inverse regularisation strength; the first is used where the labels cannot decide."""
STRENGTH_FOLDS = 4
ROUNDS = 100
"""Rounds of L-BFGS on the labelled images."""
VOTES = 5
"""Nearest labelled images that vote, at most as many as the rarest class has labels."""
SPREAD_NEIGHBOURS = 10
SPREAD_ROUNDS = 50
MAX_SPREAD = 20_000
"""Unlabelled images of the graph: neighbours among all others take time that grows with the square."""


@dataclass(frozen=True)
class NearestNeighbours:
    """Votes of the ``k`` nearest of the labelled features (m, D) by cosine; the cosines break ties."""

    features: Tensor
    labels: Labels
    num_classes: int
    k: int

    def logits(self, features: Tensor) -> Tensor:
        """Votes (n, C) of features (n, D)."""
        nearest_ones = (normalize(features, dim=1) @ normalize(self.features, dim=1).T).topk(self.k, dim=1)
        votes = torch.zeros(len(features), self.num_classes)
        classes = torch.from_numpy(self.labels)[nearest_ones.indices]
        return votes.scatter_add_(1, classes, 1 + nearest_ones.values / (4 * self.k))


SimpleClassifier = LinearClassifier | NearestNeighbours


def fit_simple_baselines(
    features: Tensor, labels: Labels, num_classes: int, strength: float | None = None
) -> dict[str, SimpleClassifier]:
    """The simple baselines by name, fitted to features (n, D) with labels (n,), ``UNLABELLED`` where there is none.

    ``strength`` is that of logistic regression; by default cross-validation over the labels chooses it.
    """
    is_labelled = labels != UNLABELLED
    x, y = features[torch.from_numpy(is_labelled)], labels[is_labelled]
    votes = max(1, min(VOTES, int(np.unique(y, return_counts=True)[1].min())))
    baselines: dict[str, SimpleClassifier] = {
        LOGISTIC_REGRESSION: _fit(x, y, num_classes, strength or choose_strength(x, y, num_classes)),
        NEAREST_NEIGHBOURS: NearestNeighbours(x, y, num_classes, votes),
    }
    if not is_labelled.all():
        baselines[LABEL_SPREADING] = label_spreading(features, labels, num_classes)
    return baselines


def choose_strength(x: Tensor, labels: Labels, num_classes: int, folds: Sequence[Rows] | None = None) -> float:
    """The strength with the lowest cross-validated log-loss over the labels (n,) of x (n, D); the first one where a
    class has a single label.

    ``folds`` are the positions that each fold leaves out, where related images must stay together.
    """
    if np.unique(labels, return_counts=True)[1].min() < 2:
        return STRENGTHS[0]
    losses = dict.fromkeys(STRENGTHS, 0.0)
    positions = np.arange(len(labels))
    given = None if folds is None else [torch.from_numpy(np.isin(positions, fold)) for fold in folds]
    for held_out in stratified_folds(labels, STRENGTH_FOLDS) if given is None else given:
        for strength in STRENGTHS:
            classifier = _fit(x[~held_out], labels[~held_out.numpy()], num_classes, strength)
            log_probs = classifier.logits(x[held_out]).log_softmax(1)
            truth = torch.from_numpy(labels[held_out.numpy()])
            losses[strength] -= float(log_probs.gather(1, truth[:, None]).sum())
    return min(losses, key=losses.__getitem__)


def stratified_folds(labels: Labels, folds: int) -> Iterator[Tensor]:
    """Masks (n,) of the labels that each fold leaves out, every label once, in the order of the rows of a class."""
    rank = rank_in_class(labels)
    for fold in range(folds):
        held_out = rank % folds == fold
        if held_out.any():
            yield torch.from_numpy(held_out)


def label_spreading(features: Tensor, labels: Labels, num_classes: int) -> LinearClassifier:
    """Labels (n,) spread over the neighbours of features (n, D), then logistic regression on the spread ones."""
    pool = np.flatnonzero(labels == UNLABELLED)
    pool = pool[np.linspace(0, len(pool) - 1, min(len(pool), MAX_SPREAD)).astype(np.int64)]
    rows = np.concatenate([np.flatnonzero(labels != UNLABELLED), pool])
    x, given = features[torch.from_numpy(rows)], labels[rows]
    one_hot = np.zeros((len(rows), num_classes))
    one_hot[given != UNLABELLED] = np.eye(num_classes)[given[given != UNLABELLED]]
    spread = spread_labels(one_hot, transition(*nearest(x, SPREAD_NEIGHBOURS)), rounds=SPREAD_ROUNDS)
    reached = spread.sum(1) > 0
    classes = np.where(given == UNLABELLED, spread.argmax(1), given)
    return _fit(x[torch.from_numpy(reached)], classes[reached], num_classes, 1.0, soft_regression.ROUNDS)


def _fit(x: Tensor, labels: Labels, num_classes: int, strength: float, rounds: int = ROUNDS) -> LinearClassifier:
    targets = torch.eye(num_classes)[torch.from_numpy(labels)]
    weights = torch.full((len(x),), strength)
    with torch.no_grad():
        return LinearClassifier(*soft_regression.fit(x, targets, weights, rounds))
