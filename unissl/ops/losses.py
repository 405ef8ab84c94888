"""Cross entropy H and its smoothed targets, the supervised parts of Eq. (7) and Eq. (8)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def one_hot(labels: Tensor, num_classes: int, dtype: torch.dtype | None = None) -> Tensor:
    """Class indices (...) as rows (..., C) of zeros with a one, without the check of their range that makes torch's own
    wait for the device."""
    zeros = torch.zeros(*labels.shape, num_classes, dtype=dtype, device=labels.device)
    return zeros.scatter_(-1, labels[..., None], 1)


def smooth(target: Tensor, eps: float) -> Tensor:
    """Soft targets (n, C), smoothed: a one-hot row becomes 1 - eps on its class and eps/(C-1) on every other."""
    others = target.shape[-1] - 1
    return target * (1 - eps) + (1 - target) * (eps / others)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """H(t, l) = -sum_c t_c log softmax(l)_c per sample, (n,); the target is soft (n, C) or class indices (n,)."""
    return functional.cross_entropy(logits, target, reduction="none")
