"""Which predictions a person should look at, and why in a word.

- ``low-confidence``: the confidence is below a level that training fixed. The level is the tenth of the pool that the model was
  least sure of, since new images are mostly like those; but never below 1/2, where an answer is more often wrong than
  right, nor above 0.95, where looking is a waste of time.
- ``outlier``: the method's detector holds the image for one of none of the classes rather than of a class. Where
  the method has no detector, the outlier score is one minus the confidence, and it must be above 1/2 and above that of
  99 in 100 images of the pool: a model that is sure of nothing shall not call every image an outsider.
- ``unreadable``: there is no image to look at with the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unissl.evaluation.predictions import Predictions

LOW_CONFIDENCE_FRACTION = 0.1
"""Share of the pool that counts as unsure."""
OUTLIER_FRACTION = 0.01
"""Share of the pool that counts as none of the classes, where no detector decides."""
LOWEST, HIGHEST = 0.5, 0.95
EVEN = 0.5
NEVER = 1.0

LOW_CONFIDENCE, OUTLIER = 1, 2
REASONS = (None, "low-confidence", "outlier")


@dataclass(frozen=True)
class ReviewThresholds:
    """When to look: below this confidence, and above this outlier score."""

    confidence: float = LOWEST
    outlier: float = NEVER

    @classmethod
    def of(cls, pool: Predictions | None, *, detector: bool) -> ReviewThresholds:
        """The levels that follow from what the model says about its pool."""
        confidence, outlier = LOWEST, EVEN if detector else NEVER
        if pool is not None:
            confidence = min(max(float(np.quantile(pool.confidence, LOW_CONFIDENCE_FRACTION)), LOWEST), HIGHEST)
            if not detector:
                outlier = max(float(np.quantile(pool.outlier, 1 - OUTLIER_FRACTION)), EVEN)
        return cls(round(confidence, 4), round(outlier, 4))

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> ReviewThresholds:
        return cls(**manifest.get("review_thresholds", {}))

    def reasons(self, said: Predictions) -> npt.NDArray[np.uint8]:
        """For each image the index into ``REASONS``."""
        unsure = np.where(said.confidence < self.confidence, LOW_CONFIDENCE, 0)
        return np.where(said.outlier > self.outlier, OUTLIER, unsure).astype(np.uint8)
