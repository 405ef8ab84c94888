"""One-vs-all detectors: for each class, one binary output: is an image of that class (inlier) or not.

A detector has 2C logits per image, viewed as (n, 2, C): row 0 of the view is "not of this class", row 1 "of this
class", with a softmax over each pair. The C inlier probabilities of an image need not sum to 1; an
out-of-distribution image ought to have low ones throughout.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ova_log_probabilities(logits: Tensor) -> tuple[Tensor, Tensor]:
    """log p_out and log p_in, (n, C) each, from (n, 2C) logits; finite wherever the logits are."""
    log_out, log_in = _pairs(logits).log_softmax(1).unbind(1)
    return log_out, log_in


def inlier_probabilities(logits: Tensor) -> Tensor:
    """p_in (n, C) from (n, 2C) logits."""
    return _pairs(logits).softmax(1)[:, 1]


def ova_consistency(logits_a: Tensor, logits_b: Tensor) -> Tensor:
    """Soft open-set consistency L_socr between two views, (n, 2C) logits each.

    The squared differences of all 2C probabilities are summed; the mean is over images.
    """
    difference = _pairs(logits_a).softmax(1) - _pairs(logits_b).softmax(1)
    return difference.square().sum((1, 2)).mean()


def ova_entropy(logits: Tensor) -> Tensor:
    """Entropy of the binary outputs, mean over images and classes, from (n, 2C) logits."""
    log_probs = torch.stack(ova_log_probabilities(logits))
    return -(log_probs.exp() * log_probs).sum(0).mean()


def _pairs(logits: Tensor) -> Tensor:
    return logits.reshape(len(logits), 2, logits.shape[1] // 2)
