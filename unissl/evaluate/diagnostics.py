"""What only the truth of the pool can tell. The one place that may look at it; nothing here reaches training."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from unissl.evaluate.metrics import accuracy
from unissl.types import OUTSIDE, UNKNOWN

Labels = npt.NDArray[np.int64]


def pseudo_label_quality(truth: Labels, predicted: Labels, num_classes: int) -> dict[str, Any]:
    """Histogram of predicted classes over the pool, split into right and wrong where the truth is known.

    Without truth (a user's own folder) only the histogram is given, and ``truth_known`` says so. Whatever class is
    given to an image of none of the classes is wrong; ``outside`` counts such images.
    """
    histogram = np.bincount(predicted, minlength=num_classes)
    if (truth == UNKNOWN).any():
        return {"truth_known": False, "predicted": histogram.tolist()}
    right = np.bincount(predicted[truth == predicted], minlength=num_classes)
    return {
        "truth_known": True,
        "accuracy": accuracy(truth, predicted),
        "predicted": histogram.tolist(),
        "true_positives": right.tolist(),
        "false_positives": (histogram - right).tolist(),
        "truth": np.bincount(truth[truth != OUTSIDE], minlength=num_classes).tolist(),
        "outside": int((truth == OUTSIDE).sum()),
    }
