"""Which predictions are to be looked at."""

from __future__ import annotations

import numpy as np
import pytest

from unissl.evaluation.predictions import Predictions
from unissl.inference.review import REASONS, ReviewThresholds


def said(*confidences: float, detected: tuple[float, ...] | None = None, classes: int = 4) -> Predictions:
    """The rest of each probability is shared by the other classes."""
    probs = [[value, *[(1 - value) / (classes - 1)] * (classes - 1)] for value in confidences]
    scores = None if detected is None else np.array(detected, dtype=np.float32)
    return Predictions(np.array(probs, dtype=np.float32), scores)


def words(doubt: ReviewThresholds, predictions: Predictions) -> list[str | None]:
    return [REASONS[index] for index in doubt.reasons(predictions)]


def test_levels_follow_the_pool_between_limits() -> None:
    pool = said(*np.linspace(0.7, 0.9, 101))
    assert ReviewThresholds.of(pool, detector=False) == ReviewThresholds(pytest.approx(0.72), 0.5)
    assert ReviewThresholds.of(said(0.999, 0.999), detector=False).confidence == 0.95
    hopeless = ReviewThresholds.of(said(*np.linspace(0.3, 0.4, 101)), detector=False)
    assert hopeless == ReviewThresholds(0.5, pytest.approx(0.699, abs=1e-4))
    assert ReviewThresholds.of(None, detector=False) == ReviewThresholds() and ReviewThresholds.of(
        None, detector=True
    ) == ReviewThresholds(0.5, 0.5)


def test_reasons() -> None:
    plain = ReviewThresholds(confidence=0.8, outlier=0.6)
    assert words(plain, said(0.81, 0.79, 0.41, 0.39)) == [None, "low-confidence", "low-confidence", "outlier"]
    detector = ReviewThresholds(confidence=0.8, outlier=0.5)
    assert words(detector, said(0.9, 0.9, 0.6, detected=(0.4, 0.6, 0.4))) == [None, "outlier", "low-confidence"]


def test_a_model_of_an_older_manifest_calls_nothing_an_outsider() -> None:
    doubt = ReviewThresholds.from_manifest({})
    assert words(doubt, said(0.3, 0.6)) == ["low-confidence", None]
    assert ReviewThresholds.from_manifest(
        {"review_thresholds": {"confidence": 0.7, "outlier": 0.9}}
    ) == ReviewThresholds(0.7, 0.9)
