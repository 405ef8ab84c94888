"""Soft labels for every image that a run trains on, from what it has learnt and from who looks like whom.

1. Logistic regression on the given labels answers for all images, from the vectors that the frozen backbone makes of
   their pictures. Where labels say little, it is also given the feature that the method has learnt; where they say
   enough, it knows better without.
2. The answers are smoothed over the nearest neighbours (:mod:`unissl.ops.neighbours`) by vectors and learnt feature.
   Given labels stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn.functional import normalize

from unissl.features.extract import FEATURE_NORM
from unissl.ops.nearest_mean import right_when_left_out
from unissl.ops.neighbours import agreement, nearest, smoothed, walk

LEARNT_SHARE = 0.25
"""Share of the method's own feature in the squared length of a vector."""
MIN_LABEL_ACCURACY = 0.6
"""Labels say enough where the nearest class mean is right about so many of them, each left out in turn: the lower end
of the 95 % interval, since forty labels may well say so by chance."""
SHARPEN_TEACHER = 2.0
"""Power that the answers of logistic regression are raised to: with few labels it is right more often than it says."""
SHARPEN_SMOOTHED = 1.5
"""Power that smoothed answers are raised to before somebody learns them."""
ROUNDS = 300

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


def soft_labels(pictures: Sequence[Tensor], learnt: Tensor, labels: Rows, num_classes: int, neighbours: int) -> Tensor:
    """Probabilities (n, C) for n images, of which the first ``len(labels)`` are the labelled ones.

    ``pictures`` are vectors (n, D) of the backbone, one table for each picture of an image, and ``learnt`` (n, d) the
    features of the method.
    """
    seen = concat_features(pictures)
    joint = concat_features(pictures, learnt)
    given = np.eye(num_classes)[labels]
    answers = sharpen(
        logistic_regression(seen if labels_suffice(seen, labels) else joint, labels, num_classes), SHARPEN_TEACHER
    )
    places, cosines = nearest(joint, neighbours)
    steps = walk(places, cosines, agreement(answers, places))
    answers[: len(labels)] = given
    agreed = sharpen(smoothed(answers, steps), SHARPEN_SMOOTHED)
    agreed[: len(labels)] = given
    return torch.from_numpy(agreed).float()


def concat_features(pictures: Sequence[Tensor], learnt: Tensor | None = None) -> Tensor:
    """Side by side in their shares, pictures in equal ones, scaled to the length of vectors elsewhere."""
    share = 0.0 if learnt is None else LEARNT_SHARE
    parts = [normalize(picture, dim=1) * ((1 - share) / len(pictures)) ** 0.5 for picture in pictures]
    parts += [] if learnt is None else [normalize(learnt, dim=1) * share**0.5]
    return torch.cat(parts, 1) * FEATURE_NORM


def labels_suffice(seen: Tensor, labels: Rows) -> bool:
    """Whether it is shown that labelled images, each left out in turn, are mostly told by the others."""
    right, asked = right_when_left_out(seen[: len(labels)], labels)
    return asked > 0 and float(binomtest(right, asked).proportion_ci(method="wilson").low) >= MIN_LABEL_ACCURACY


def logistic_regression(x: Tensor, labels: Rows, num_classes: int) -> Floats:
    """What logistic regression on the first rows says about all of them; a class without a label gets nothing."""
    with threadpool_limits(1, user_api="blas"):  # its threads, which nobody sets, would decide the last bits
        fitted = LogisticRegression(max_iter=ROUNDS).fit(x[: len(labels)].numpy(), labels)
    probs = np.zeros((len(x), num_classes))
    probs[:, fitted.classes_] = fitted.predict_proba(x.numpy())
    return probs


def sharpen(probs: Floats, exponent: float) -> Floats:
    raised = probs**exponent
    shares: Floats = raised / raised.sum(1, keepdims=True)
    return shares
