"""Images to class probabilities and outlier scores, in batches and without gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from unissl.evaluation.calibrators import IDENTITY, Calibrator
from unissl.types import Floats, Labels, Outputs, Prediction, Rows

if TYPE_CHECKING:
    from unissl.batches import Views

Forward = Callable[[Tensor], Outputs | Prediction]
"""A network: normalised images (n, channels, h, w), or features (n, D), to logits and features."""


@dataclass(frozen=True)
class Predictions:
    """Class probabilities (n, C) of n images and, if the method has an OOD detector, its scores (n,)."""

    probs: Floats
    ood_scores: Floats | None = None

    @property
    def classes(self) -> Labels:
        return np.asarray(self.probs.argmax(1), dtype=np.int64)

    @property
    def confidence(self) -> Floats:
        """q_max, the largest probability."""
        return np.asarray(self.probs.max(1), dtype=np.float32)

    @property
    def margin(self) -> Floats:
        """q_gap, the largest probability minus the second largest."""
        top_two = np.partition(self.probs, -2, axis=1)[:, -2:]
        return np.asarray(top_two[:, 1] - top_two[:, 0], dtype=np.float32)

    @property
    def outlier_score(self) -> Floats:
        """The detector's score, or one minus the confidence if the method has no detector."""
        return 1 - self.confidence if self.ood_scores is None else self.ood_scores

    def calibrated(self, calibrator: Calibrator) -> Predictions:
        """Calibrated probabilities. The outlier score does not change: a calibrator that was fitted on images of the
        classes has no information about others."""
        if calibrator == IDENTITY:
            return self
        return Predictions(calibrator.apply_to_probs(self.probs).astype(np.float32), self.outlier_score)


def features_of(outputs: Outputs | Prediction) -> Tensor:
    """The features (n, D) before the classifier."""
    return outputs.feat if isinstance(outputs, Outputs) else outputs.features


def outlier_scores_of(outputs: Outputs | Prediction) -> Tensor:
    """The detector's scores (n,), or one minus the confidence."""
    if isinstance(outputs, Prediction) and outputs.outlier is not None:
        return outputs.outlier
    return 1 - outputs.logits.softmax(-1).amax(-1)


def predict_rows(forward: Forward, views: Views, *, rows: Rows | None = None, batch_size: int = 256) -> Predictions:
    """Probabilities and outlier scores of all rows, or of ``rows``, without augmentation."""
    rows = np.arange(len(views)) if rows is None else rows
    probs, ood_scores = [], []
    for start in range(0, len(rows), batch_size):
        with torch.no_grad():
            outputs = forward(views("none", rows[start : start + batch_size]))
        probs.append(outputs.logits.softmax(-1).cpu().to(torch.float32).numpy())
        if isinstance(outputs, Prediction) and outputs.outlier is not None:
            ood_scores.append(outputs.outlier.cpu().to(torch.float32).numpy())
    if not probs:
        raise ValueError("no images to predict")
    return Predictions(np.concatenate(probs), np.concatenate(ood_scores) if ood_scores else None)
