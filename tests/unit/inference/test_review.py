"""Which predictions are flagged for review."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from unissl.evaluation.predictions import Predictions
from unissl.inference.review import REASONS, ReviewThresholds


def predictions(*confidences: float, ood_scores: tuple[float, ...] | None = None, classes: int = 4) -> Predictions:
    """The rest of each probability is shared by the other classes."""
    probs = [[value, *[(1 - value) / (classes - 1)] * (classes - 1)] for value in confidences]
    scores = None if ood_scores is None else np.array(ood_scores, dtype=np.float32)
    return Predictions(np.array(probs, dtype=np.float32), scores)


def from_pool(*confidences: float) -> tuple[float, float]:
    thresholds = ReviewThresholds.from_pool(predictions(*confidences), has_detector=False)
    return thresholds.confidence, thresholds.outlier


def words(thresholds: ReviewThresholds, preds: Predictions) -> list[str | None]:
    return [REASONS[index] for index in thresholds.reasons(preds)]


def test_thresholds_follow_the_pool_between_limits() -> None:
    assert from_pool(*np.linspace(0.7, 0.9, 101)) == (pytest.approx(0.72), 0.5)
    assert from_pool(0.999, 0.999)[0] == 0.95
    assert from_pool(*np.linspace(0.3, 0.4, 101)) == (0.5, pytest.approx(0.699, abs=1e-4))
    assert ReviewThresholds.from_pool(None, has_detector=False) == ReviewThresholds()
    assert ReviewThresholds.from_pool(None, has_detector=True) == ReviewThresholds(confidence=0.5, outlier=0.5)


def test_reasons() -> None:
    plain = ReviewThresholds(confidence=0.8, outlier=0.6)
    assert words(plain, predictions(0.81, 0.79, 0.41, 0.39)) == [None, "low-confidence", "low-confidence", "outlier"]
    detector = ReviewThresholds(confidence=0.8, outlier=0.5)
    scored = predictions(0.9, 0.9, 0.6, ood_scores=(0.4, 0.6, 0.4))
    assert words(detector, scored) == [None, "outlier", "low-confidence"]


def test_without_thresholds_nothing_is_an_outlier() -> None:
    assert words(ReviewThresholds(), predictions(0.3, 0.6)) == ["low-confidence", None]


@pytest.mark.parametrize("value", ["0.5", float("nan"), 1e9, None])
def test_thresholds_of_a_manifest_are_numbers(value: object) -> None:
    with pytest.raises(ValidationError):
        ReviewThresholds.model_validate({"confidence": value})
