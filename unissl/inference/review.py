"""Which predictions need human review, and why.

- ``low-confidence``: the confidence is below a threshold that training fixed: the 10 % quantile of the pool's
  confidences, since new images mostly resemble the pool. It is at least 1/2, below which a prediction is more often
  wrong than right, and at most 0.95, above which review is not worth the time.
- ``outlier``: the outlier score is above a threshold. With an OOD detector the threshold is 1/2. Without one the
  outlier score is one minus the confidence, and the threshold is the 99 % quantile of the pool, at least 1/2: a model
  that is unsure of everything must not flag every image.
- ``unreadable``: the file could not be decoded, so there is no prediction.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from unissl.evaluation.predictions import Predictions

LOW_CONFIDENCE_FRACTION = 0.1
"""Fraction of the pool below the confidence threshold."""
OUTLIER_FRACTION = 0.01
"""Fraction of the pool above the outlier threshold, if the method has no detector."""
MIN_CONFIDENCE, MAX_CONFIDENCE = 0.5, 0.95
EVEN_ODDS = 0.5
NEVER = 1.0
"""No outlier score is above it."""

LOW_CONFIDENCE, OUTLIER = 1, 2
REASONS = (None, "low-confidence", "outlier")
UNREADABLE = "unreadable"

Threshold = Annotated[float, Field(allow_inf_nan=False, ge=-1e6, le=1e6)]


class ReviewThresholds(BaseModel):
    """A prediction is flagged below this confidence and above this outlier score."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    confidence: Threshold = MIN_CONFIDENCE
    outlier: Threshold = NEVER

    @classmethod
    def from_pool(cls, pool: Predictions | None, *, has_detector: bool) -> ReviewThresholds:
        """Thresholds from the predictions for the pool."""
        confidence, outlier = MIN_CONFIDENCE, EVEN_ODDS if has_detector else NEVER
        if pool is not None:
            quantile = float(np.quantile(pool.confidence, LOW_CONFIDENCE_FRACTION))
            confidence = min(max(quantile, MIN_CONFIDENCE), MAX_CONFIDENCE)
            if not has_detector:
                outlier = max(float(np.quantile(pool.outlier_score, 1 - OUTLIER_FRACTION)), EVEN_ODDS)
        return cls(confidence=round(confidence, 4), outlier=round(outlier, 4))

    def reasons(self, predictions: Predictions) -> npt.NDArray[np.uint8]:
        """Index into ``REASONS`` for each image (n,)."""
        low_confidence = np.where(predictions.confidence < self.confidence, LOW_CONFIDENCE, 0)
        return np.where(predictions.outlier_score > self.outlier, OUTLIER, low_confidence).astype(np.uint8)
