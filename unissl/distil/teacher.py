"""The teacher: soft labels for every image of a run, from the given labels and the nearest neighbours.

1. A logistic regression on the given labels predicts all images, from the backbone features of their crops. Where the
   labels determine little, it also gets the features that the method has learnt; where they determine enough, it is
   more accurate without.
2. The predictions are smoothed over the nearest neighbours (:mod:`unissl.ops.neighbours`) by backbone and learnt
   features. Given labels stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn.functional import normalize

from unissl.evaluation.intervals import wilson_interval
from unissl.features.scaler import FEATURE_NORM
from unissl.ops.nearest_mean import leave_one_out_correct
from unissl.ops.neighbours import agreement, nearest, spread_labels, transition
from unissl.types import UNLABELLED

LEARNT_SHARE = 0.25
"""Share of the learnt feature in the squared norm of the concatenated one."""
MIN_LABEL_ACCURACY = 0.6
"""Leave-one-out accuracy of the nearest class mean from which the labels suffice: the lower end of its 95 % interval,
since forty labels may reach it by chance."""
SHARPEN_TEACHER = 2.0
"""Power of the predicted probabilities: with few labels, logistic regression is underconfident."""
SHARPEN_SMOOTHED = 1.5
"""Power of the smoothed probabilities."""
MAX_ITER = 300

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def soft_labels(crops: Sequence[Tensor], learnt: Tensor, labels: Labels, num_classes: int, k_neighbours: int) -> Tensor:
    """Class probabilities (n, C) of n images.

    ``crops`` are backbone features (n, D), one tensor for each crop of the images, ``learnt`` (n, d) the features of
    the method, and ``labels`` (n,) the given labels, ``UNLABELLED`` where there is none.
    """
    is_labelled = labels != UNLABELLED
    one_hot = np.eye(num_classes)[labels[is_labelled]]
    features, joint = concat_features(crops), concat_features(crops, learnt)
    inputs = features if labels_suffice(features, labels) else joint
    probs = sharpen(logistic_regression(inputs, labels, num_classes), SHARPEN_TEACHER)
    neighbours, cosines = nearest(joint, k_neighbours)
    matrix = transition(neighbours, cosines, agreement(probs, neighbours))
    probs[is_labelled] = one_hot
    probs = sharpen(spread_labels(probs, matrix), SHARPEN_SMOOTHED)
    probs[is_labelled] = one_hot
    return torch.from_numpy(probs).float()


def concat_features(crops: Sequence[Tensor], learnt: Tensor | None = None) -> Tensor:
    """Features side by side, with equal shares for the crops and ``LEARNT_SHARE`` for the learnt ones, scaled to
    ``FEATURE_NORM``."""
    share = 0.0 if learnt is None else LEARNT_SHARE
    parts = [normalize(crop, dim=1) * ((1 - share) / len(crops)) ** 0.5 for crop in crops]
    parts += [] if learnt is None else [normalize(learnt, dim=1) * share**0.5]
    return torch.cat(parts, 1) * FEATURE_NORM


def labels_suffice(features: Tensor, labels: Labels) -> bool:
    """Whether the leave-one-out accuracy on the labelled images is significantly above ``MIN_LABEL_ACCURACY``."""
    is_labelled = labels != UNLABELLED
    right, tested = leave_one_out_correct(features[torch.from_numpy(is_labelled)], labels[is_labelled])
    return tested > 0 and wilson_interval(right, tested).low >= MIN_LABEL_ACCURACY


def logistic_regression(x: Tensor, labels: Labels, num_classes: int) -> Floats:
    """Probabilities (n, C) of logistic regression on the labelled rows of x (n, D); a class without a label gets 0."""
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
