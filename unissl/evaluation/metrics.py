"""How good predictions are. ``labels=`` is always passed, so a class missing from a test set changes no shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import confusion_matrix, roc_auc_score

from unissl.evaluation.predictions import Predictions
from unissl.types import OOD

Labels = npt.NDArray[np.int64]


def accuracy(truth: Labels, predicted: Labels) -> float:
    return float((truth == predicted).mean())


def score(truth: Labels, predicted: Labels, num_classes: int) -> dict[str, Any]:
    """Accuracy, balanced accuracy (mean recall of the classes that occur), recalls (None where a class does not
    occur) and the confusion matrix, rows true and columns predicted."""
    matrix = confusion_matrix(truth, predicted, labels=np.arange(num_classes))
    occurrences = matrix.sum(1)
    recalls = [float(matrix[c, c] / n) if n else None for c, n in enumerate(occurrences)]
    present = [recall for recall in recalls if recall is not None]
    return {
        "accuracy": accuracy(truth, predicted),
        "balanced_accuracy": float(np.mean(present)),
        "per_class_recall": recalls,
        "confusion_matrix": matrix.tolist(),
    }


def evaluate_predictions(truth: Labels, predictions: Predictions, num_classes: int) -> dict[str, Any]:
    """Scores on the images of known classes and, where there are others, how well the outlier score finds those."""
    known = truth != OOD
    scores = score(truth[known], predictions.classes[known], num_classes)
    if not known.all():
        scores["auroc"] = outlier_auroc(truth, predictions.outlier)
        scores["ood_test_images"] = int((~known).sum())
    return scores


def outlier_auroc(truth: Labels, outlier: npt.NDArray[np.float32]) -> float:
    """Chance that an image of none of the classes has a higher outlier score than one of a class (ties count half)."""
    return float(roc_auc_score(truth == OOD, outlier))


def accuracy_summary(curve: list[float]) -> dict[str, float]:
    """Accuracy of a run from its evaluations. ``best`` is chosen on the evaluation set and therefore optimistic."""
    return {"last": curve[-1], "mean_last_20": float(np.mean(curve[-20:])), "best": max(curve)}
