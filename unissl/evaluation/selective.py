"""Selective accuracy: the accuracy of the predictions whose confidence reaches a threshold, and how many these are.

With it a user chooses a threshold: predictions above it are taken, the other images are labelled by hand. In the
literature it is the risk-coverage trade-off of selective classification, with risk = 1 - accuracy. The thresholds of
the column ``review`` are in ``unissl/inference/review.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from unissl.evaluation.intervals import Interval, wilson_interval
from unissl.types import Bools, Floats

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
TRUSTED = 0.95
"""Accuracy from which on predictions may be taken without a look."""


@dataclass(frozen=True)
class SelectiveAccuracy:
    """What is known about predictions with a confidence of at least ``threshold``."""

    threshold: float
    images: int
    """Evaluated images that reach the threshold."""
    coverage: float
    """Their fraction of all evaluated images."""
    correct: int
    pool_coverage: float | None = None
    """Fraction of the unlabelled pool that reaches the threshold; None without a pool."""

    @property
    def accuracy(self) -> Interval | None:
        """With its 95 % interval (Wilson); None if no evaluated image reaches the threshold."""
        return wilson_interval(self.correct, self.images) if self.images else None

    def to_summary(self) -> dict[str, Any]:
        accuracy = self.accuracy
        interval = {} if accuracy is None else {"accuracy": accuracy.value, "low": accuracy.low, "high": accuracy.high}
        return asdict(self) | interval

    @classmethod
    def from_summary(cls, stored: Mapping[str, Any]) -> SelectiveAccuracy:
        values: dict[str, Any] = {field.name: stored.get(field.name) for field in fields(cls)}
        return cls(**values)


def selective_accuracy(
    confidence: Floats, correct: Bools, pool_confidence: Floats | None = None
) -> list[SelectiveAccuracy]:
    """One row per threshold, for evaluated images (n,) whose confidences come from models that were not trained on
    them."""
    rows = []
    for threshold in THRESHOLDS:
        reached = confidence >= np.float32(threshold)
        pool = None if pool_confidence is None else float((pool_confidence >= np.float32(threshold)).mean())
        count = int(reached.sum())
        rows.append(SelectiveAccuracy(threshold, count, count / len(confidence), int(correct[reached].sum()), pool))
    return rows


def trusted_threshold(rows: Sequence[SelectiveAccuracy]) -> SelectiveAccuracy | None:
    """The lowest threshold with an accuracy of at least 95 %; without any, the one with the highest accuracy."""
    known = [(row, row.accuracy.value) for row in rows if row.accuracy is not None]
    trusted = (row for row, accuracy in known if accuracy >= TRUSTED)
    return next(trusted, max(known, key=lambda pair: pair[1], default=(None, 0.0))[0])
