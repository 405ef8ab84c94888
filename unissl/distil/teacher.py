"""The teacher: soft labels for every image of a run, from the given labels and the nearest neighbours.

1. A logistic regression on the given labels predicts all images, from the backbone features of their crops. Where the
   pool is large and the labels do not suffice, its predictions are averaged with those of a second one, which also gets
   the features that the method has learnt.
2. The predictions are smoothed over the nearest neighbours (:mod:`unissl.ops.neighbours`) by backbone features and
   the learnt ones. Given labels stay as they are.
3. With fewer than two labels per class, logistic regression knows little. The smoothed predictions are then averaged
   with the given labels themselves, spread over the same neighbours.

In the regression, learnt features gain on large pools where the backbone separates the classes badly, and lose where it
separates them well or the pool is small and imbalanced (docs/experiments.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn.functional import normalize

from unissl.evaluation.intervals import wilson_interval
from unissl.features.scaler import FEATURE_NORM
from unissl.ops.nearest_mean import leave_one_out_correct
from unissl.ops.neighbours import agreement, nearest, spread_labels, transition
from unissl.types import UNLABELLED, Labels

LEARNT_SHARE = 0.25
"""Share of the learnt feature in the squared norm of the concatenated one."""
LARGE_POOL = 4000
"""Unlabelled images beyond which the regression may use learnt features."""
SUFFICIENT_ACCURACY = 0.6
"""Leave-one-out accuracy of the nearest class mean from which the labels suffice: the lower end of its 95 % interval,
since forty labels may reach it by chance."""
SHARPEN_TEACHER = 2.0
"""Power of the predicted probabilities: with few labels, logistic regression is underconfident."""
SHARPEN_SMOOTHED = 1.5
"""Power of the smoothed probabilities."""
SCARCE_LABELS = 2
"""Labels per class below which the labels themselves are spread over the neighbours as well."""
SCARCE_SHARE, SCARCE_ROUNDS = 0.9, 100
BALANCE = 0.5
"""Exponent of the class weights: 0 leaves the distribution of the pool, 1 makes all classes equal."""
MIN_SHARE = 0.2
"""Share of a class, relative to an equal one, below which its weight grows no further."""
MAX_ITER = 300

Floats = npt.NDArray[np.float64]


def soft_labels(crops: Sequence[Tensor], learnt: Tensor, labels: Labels, num_classes: int, k_neighbours: int) -> Tensor:
    """Class probabilities (n, C) of n images.

    ``crops`` are backbone features (n, D), one tensor for each crop of the images, ``learnt`` (n, d) the features of
    the method, and ``labels`` (n,) the given labels, ``UNLABELLED`` where there is none.
    """
    is_labelled = labels != UNLABELLED
    given = np.eye(num_classes)[labels[is_labelled]]
    features = concat_features(crops)
    add_learnt = (~is_labelled).sum() > LARGE_POOL and not labels_suffice(features, labels)
    probs = sharpen(logistic_regression(features, labels, num_classes), SHARPEN_TEACHER)
    del features  # the largest tensor of a run, and the next one is larger
    joint = concat_features(crops, learnt)
    if add_learnt:
        probs = (probs + sharpen(logistic_regression(joint, labels, num_classes), SHARPEN_TEACHER)) / 2
    neighbours, cosines = nearest(joint, k_neighbours, overwrite=True)
    matrix = transition(neighbours, cosines, agreement(probs, neighbours))
    probs[is_labelled] = given
    soft = sharpen(spread_labels(probs, matrix), SHARPEN_SMOOTHED)
    if len(given) < SCARCE_LABELS * num_classes:
        soft = (soft + spread_given_labels(labels, num_classes, transition(neighbours, cosines))) / 2
    soft[is_labelled] = given
    return torch.from_numpy(soft).float()


def labels_suffice(features: Tensor, labels: Labels) -> bool:
    """Whether the whole interval of the leave-one-out accuracy on labelled images is above ``SUFFICIENT_ACCURACY``."""
    is_labelled = labels != UNLABELLED
    right, tested = leave_one_out_correct(features[torch.from_numpy(is_labelled)], labels[is_labelled])
    return tested > 0 and wilson_interval(right, tested).low >= SUFFICIENT_ACCURACY


def spread_given_labels(labels: Labels, num_classes: int, matrix: sparse.csr_array) -> Floats:
    """Probabilities (n, C) from the labels (n,) alone, spread over the graph; uniform where none arrives."""
    one_hot = np.zeros((len(labels), num_classes))
    one_hot[labels != UNLABELLED] = np.eye(num_classes)[labels[labels != UNLABELLED]]
    spread = spread_labels(one_hot, matrix, share=SCARCE_SHARE, rounds=SCARCE_ROUNDS)
    spread[spread.sum(1) == 0] = 1 / num_classes
    return spread


def balance_weights(soft: Tensor, exponent: float = BALANCE) -> Tensor:
    """Weights (n,), with mean 1, that bring the classes of soft labels (n, C) nearer to equal shares.

    The class distribution of a pool is arbitrary, and a classifier would learn it as its prior.
    """
    shares = soft.mean(0).clamp(min=MIN_SHARE / soft.shape[1])
    weights = soft @ (1 / (soft.shape[1] * shares)) ** exponent
    return weights / weights.mean()


def concat_features(crops: Sequence[Tensor], learnt: Tensor | None = None) -> Tensor:
    """Features side by side, with equal shares for the crops and ``LEARNT_SHARE`` for the learnt ones, scaled to
    ``FEATURE_NORM``."""
    share = 0.0 if learnt is None else LEARNT_SHARE
    parts = [(crop, (1 - share) / len(crops)) for crop in crops] + ([] if learnt is None else [(learnt, share)])
    joint, start = torch.empty(len(crops[0]), sum(part.shape[1] for part, _ in parts)), 0
    for part, part_share in parts:  # written one by one: together they are the largest tensors of a run
        torch.mul(normalize(part, dim=1), part_share**0.5, out=joint[:, start : start + part.shape[1]])
        start += part.shape[1]
    return joint.mul_(FEATURE_NORM)


def logistic_regression(x: Tensor, labels: Labels, num_classes: int) -> Floats:
    """Probabilities (n, C) of logistic regression on the labelled rows of x (n, D); a class without a label gets 0."""
    from sklearn.linear_model import LogisticRegression  # a second to import, which no start of a run should wait for

    is_labelled = labels != UNLABELLED
    with threadpool_limits(1, user_api="blas"):  # the number of threads would change the last bits
        model = LogisticRegression(max_iter=MAX_ITER).fit(x.numpy()[is_labelled], labels[is_labelled])
    probs = np.zeros((len(x), num_classes))
    probs[:, model.classes_] = model.predict_proba(x.numpy())
    return probs


def sharpen(probs: Floats, exponent: float) -> Floats:
    """Probabilities (n, C) raised to a power and normalised again."""
    raised = probs**exponent
    sharpened: Floats = raised / raised.sum(1, keepdims=True)
    return sharpened
