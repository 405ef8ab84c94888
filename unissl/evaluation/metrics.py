"""Metrics of predictions. ``labels=`` is always passed, so a class missing from a test set changes no shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from unissl.evaluation.intervals import Interval, wilson_interval
from unissl.types import OOD, Floats, Labels


def accuracy(truth: Labels, predicted: Labels) -> float:
    return float((truth == predicted).mean())


def score(truth: Labels, predicted: Labels, num_classes: int) -> dict[str, Any]:
    """Accuracy, balanced accuracy (mean recall of the classes that occur), recalls (None where a class does not
    occur) and the confusion matrix, rows true and columns predicted."""
    from sklearn.metrics import confusion_matrix  # slow to import

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


def evaluate_predictions(truth: Labels, classes: Labels, outlier_score: Floats, num_classes: int) -> dict[str, Any]:
    """:func:`score` of the in-distribution images and, if there are OOD images, the AUROC of the outlier score."""
    known = truth != OOD
    scores = score(truth[known], classes[known], num_classes)
    if not known.all():
        scores["auroc"] = outlier_auroc(truth, outlier_score)
        scores["ood_test_images"] = int((~known).sum())
    return scores


def outlier_auroc(truth: Labels, outlier_score: Floats) -> float:
    """Probability that an OOD image has a higher outlier score than an image of a class (ties count half)."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(truth == OOD, outlier_score))


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a model on labelled images."""

    images: int
    """Images of the classes; OOD images are counted in ``ood_images``."""
    accuracy: float
    interval: Interval
    """95 % interval of the accuracy (Wilson)."""
    balanced_accuracy: float
    per_class_recall: dict[str, float | None]
    """By class name; None if no image has the class."""
    confusion_matrix: Labels
    """(C, C), rows true and columns predicted."""
    ood_images: int = 0
    auroc: float | None = None
    """Of the outlier score, if there are OOD images."""
    unreadable: int = 0
    """Images that could not be read and were left out."""

    @classmethod
    def of(
        cls, truth: Labels, classes: Labels, outlier_score: Floats, class_names: tuple[str, ...], unreadable: int = 0
    ) -> Evaluation:
        """From true and predicted classes (n,), -2 for a true class out of distribution, and outlier scores (n,)."""
        scores = evaluate_predictions(truth, classes, outlier_score, len(class_names))
        matrix = np.array(scores["confusion_matrix"], dtype=np.int64)
        return cls(
            int(matrix.sum()),
            scores["accuracy"],
            wilson_interval(int(matrix.trace()), int(matrix.sum())),
            scores["balanced_accuracy"],
            dict(zip(class_names, scores["per_class_recall"], strict=True)),
            matrix,
            scores.get("ood_test_images", 0),
            scores.get("auroc"),
            unreadable,
        )

    def __str__(self) -> str:
        scores = f"accuracy {self.accuracy:.4f}, balanced {self.balanced_accuracy:.4f}"
        return f"{self.images} images: {scores}, 95 % interval {self.interval.low:.4f} to {self.interval.high:.4f}"


def accuracy_summary(curve: list[float]) -> dict[str, float]:
    """Accuracy of a run from its evaluations. ``best`` is chosen on the evaluation set and therefore optimistic."""
    return {"last": curve[-1], "mean_last_20": float(np.mean(curve[-20:])), "best": max(curve)}
