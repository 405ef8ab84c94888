"""The readout of a trained network: its head, or a linear classifier refitted to the consensus of the pool.

With one or two labels per class the head has seen few true labels, whereas the features of the pool form clusters. The
labels are spread over these clusters (:mod:`unissl.ops.consensus`), and a linear classifier is fitted to the result: it
has the shape of the head and can replace it. Any method that predicts with the network's head can be read out so.

Which of the two is shipped is decided without test labels, by :class:`Evidence`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from unissl.ops import soft_regression
from unissl.ops.consensus import K_NEIGHBOURS, consensus_labels
from unissl.ops.linear import LinearClassifier, rank_in_class
from unissl.ops.neighbours import nearest, transition
from unissl.types import UNLABELLED, Labels

FEATURE_NORM = 16.0
"""Mean length to which features are scaled for the regression, whose penalty is on their coefficients."""
FOLDS = 4
"""Parts of the labels that are left out in turn."""


@dataclass(frozen=True)
class Evidence:
    """What is known about the two classifiers without test labels; every number is a share."""

    agreement: float
    """Images of the pool to which both classifiers give the same class."""
    labels_head: float
    labels_consensus: float
    """Labelled images to which a classifier gives their label."""
    left_out_mean: float | None = None
    left_out_consensus: float | None = None
    """Left-out labels that the others predict, by the nearest class mean and by the consensus; None if no class has
    two."""

    @property
    def favours_consensus(self) -> bool:
        """It reproduces the labels as well as the head, and predicts left-out ones as well as the nearest class mean,
        or better than the head reproduces given ones: such a head has collapsed.

        Where every class has one label, only the first can be tested. Whether neighbours get the same class is not
        evidence: they do so most under a head that has given up a class.
        """
        left_out = self.left_out_consensus or 0.0
        left_out_as_well = left_out >= (self.left_out_mean or 0.0) or left_out > self.labels_head
        return self.labels_consensus >= self.labels_head and left_out_as_well

    def to_summary(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


def choose_readout(
    head: LinearClassifier, labelled: Tensor, labels: Labels, pool: Tensor
) -> tuple[LinearClassifier, Evidence]:
    """The classifier of the consensus, and whether it should replace ``head``.

    ``labelled`` (L, D) and ``pool`` (U, D) are features of the images with ``labels`` (L,) and of those without.
    """
    features, num_classes = torch.cat([labelled, pool]), len(head.bias)
    known = np.concatenate([labels, np.full(len(pool), UNLABELLED)])
    graph = transition(*nearest(features, K_NEIGHBOURS))
    classifier = fit_classifier(features, known, consensus_labels(graph, known, num_classes))
    by_head, by_consensus = head.classes(features), classifier.classes(features)
    count = len(labels)
    evidence = Evidence(
        agreement=float(np.mean(by_head[count:] == by_consensus[count:])),
        labels_head=float(np.mean(by_head[:count] == labels)),
        labels_consensus=float(np.mean(by_consensus[:count] == labels)),
        **left_out_accuracy(labelled, labels, graph, num_classes),
    )
    return classifier, evidence


def fit_classifier(features: Tensor, known: Labels, consensus: npt.NDArray[np.float64]) -> LinearClassifier:
    """Logistic regression on the consensus (n, C), with true labels where they are ``known`` (n,).

    An image counts by how far its consensus is from uniform; one that no label reaches does not count.
    """
    probs = torch.from_numpy(consensus.copy())
    rows = torch.from_numpy(np.flatnonzero(known != UNLABELLED))
    num_classes = probs.shape[1]
    probs[rows] = one_hot(torch.from_numpy(known)[rows], num_classes).to(probs)
    entropy = torch.special.entr(probs).sum(1) / np.log(num_classes)
    weights = torch.where(probs.sum(1) > 0, 1 - entropy, 0.0)
    scale = FEATURE_NORM / float(features.norm(dim=1).mean().clamp(min=1e-12))
    weight, bias = soft_regression.fit(scale * features.double(), probs, weights)
    return LinearClassifier((scale * weight).to(features), bias.to(features))


def left_out_accuracy(
    labelled: Tensor, labels: Labels, graph: sparse.csr_array, num_classes: int
) -> dict[str, float | None]:
    """Accuracies of the two predictors of left-out labels; the first rows of ``graph`` are the labelled ones."""
    fold = rank_in_class(labels) % FOLDS
    right: dict[str, list[np.bool_]] = {"left_out_mean": [], "left_out_consensus": []}
    for number in range(fold.max() + 1):
        known = np.full(graph.shape[0], UNLABELLED)
        known[: len(labels)] = np.where(fold == number, UNLABELLED, labels)
        tested = np.flatnonzero((fold == number) & np.isin(labels, known))  # others of the class are left
        if not len(tested):
            continue
        probs = consensus_labels(graph, known, num_classes)[tested]
        right["left_out_consensus"] += list(probs.argmax(1) == labels[tested])
        right["left_out_mean"] += list(nearest_mean(labelled, known[: len(labels)], tested) == labels[tested])
    return {name: float(np.mean(values)) if values else None for name, values in right.items()}


def nearest_mean(features: Tensor, known: Labels, rows: Labels) -> Labels:
    """Classes of some rows by the cosine to the mean of the unit rows of each known class."""
    unit = normalize(features, dim=1)
    classes = np.unique(known[known != UNLABELLED])
    means = torch.stack([unit[torch.from_numpy(known == label)].mean(0) for label in classes])
    return np.asarray(classes[(unit[torch.from_numpy(rows)] @ normalize(means, dim=1).T).argmax(1).numpy()])
