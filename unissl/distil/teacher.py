"""Soft labels for every image that a run trains on, from what it has learnt and from who looks like whom.

1. A vector of each image: that of the frozen backbone and, to a smaller part, the feature that the method has learnt on
   top of it. The first is what logistic regression on labels makes the most of, the second is worth more where labels
   say little.
2. Logistic regression on the given labels answers for all images; given labels stay as they are.
3. The answers are smoothed over the nearest neighbours (:mod:`unissl.ops.neighbours`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn.functional import normalize

from unissl.features import LENGTH
from unissl.ops.neighbours import nearest, smoothed, walk

LEARNT_SHARE = 0.25
"""Share of the method's own feature in the squared length of a vector."""
TRUST = 2.0
"""Power that the answers of logistic regression are raised to: with few labels it is right more often than it says."""
SHARPENED = 1.5
"""Power that smoothed answers are raised to before somebody learns them."""
ROUNDS = 300

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


def soft_labels(vectors: Tensor, learnt: Tensor, labels: Rows, num_classes: int, neighbours: int) -> Tensor:
    """Probabilities (n, C) for n images, of which the first ``len(labels)`` are the labelled ones.

    ``vectors`` (n, D) are those of the backbone, ``learnt`` (n, d) the features of the method.
    """
    joint = together(vectors, learnt)
    given = np.eye(num_classes)[labels]
    answers = power(regressed(joint, labels, num_classes), TRUST)
    answers[: len(labels)] = given
    agreed = power(smoothed(answers, walk(*nearest(joint, neighbours))), SHARPENED)
    agreed[: len(labels)] = given
    return torch.from_numpy(agreed).float()


def together(vectors: Tensor, learnt: Tensor) -> Tensor:
    """Both side by side, in their shares, scaled to the length of vectors elsewhere."""
    parts = [normalize(vectors, dim=1) * (1 - LEARNT_SHARE) ** 0.5, normalize(learnt, dim=1) * LEARNT_SHARE**0.5]
    return torch.cat(parts, 1) * LENGTH


def regressed(x: Tensor, labels: Rows, num_classes: int) -> Floats:
    """What logistic regression on the first rows says about all of them; a class without a label gets nothing."""
    with threadpool_limits(1, user_api="blas"):  # its threads, which nobody sets, would decide the last bits
        fitted = LogisticRegression(max_iter=ROUNDS).fit(x[: len(labels)].numpy(), labels)
    probs = np.zeros((len(x), num_classes))
    probs[:, fitted.classes_] = fitted.predict_proba(x.numpy())
    return probs


def power(probs: Floats, exponent: float) -> Floats:
    raised = probs**exponent
    shares: Floats = raised / raised.sum(1, keepdims=True)
    return shares
