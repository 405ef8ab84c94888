"""A linear classifier, and the order of labels within their classes, from which folds are made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unissl.types import Labels


@dataclass(frozen=True)
class LinearClassifier:
    """Weight (C, D) and bias (C,)."""

    weight: Tensor
    bias: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Logits (n, C) of features (n, D)."""
        return torch.addmm(self.bias, features, self.weight.T)

    def classes(self, features: Tensor) -> Labels:
        """Predicted classes (n,) of features (n, D)."""
        predicted: Labels = self.logits(features).argmax(1).numpy()
        return predicted


def rank_in_class(labels: Labels) -> Labels:
    """0 for the first image of each class, 1 for the second, and so on."""
    ranks = np.zeros_like(labels)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        ranks[rows] = np.arange(len(rows))
    return ranks
