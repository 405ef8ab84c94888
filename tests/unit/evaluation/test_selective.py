"""Accuracy at confidence thresholds: against loops, at its edges, and which threshold is suggested."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from unissl.evaluation.calibration import calibrate, cross_fitted
from unissl.evaluation.selective import THRESHOLDS, SelectiveAccuracy, selective_accuracy, trusted_threshold


def drawn(count: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    confidence = rng.random(count).astype(np.float32)
    return confidence, rng.random(count) < confidence, rng.random(77).astype(np.float32)


def test_rows_are_what_loops_count() -> None:
    confidence, correct, pool = drawn()
    rows = selective_accuracy(confidence, correct, pool)
    assert [row.threshold for row in rows] == list(THRESHOLDS)
    for row in rows:
        images = right = 0
        for value, is_right in zip(confidence.tolist(), correct.tolist(), strict=True):
            if value >= np.float32(row.threshold):
                images += 1
                right += is_right
        in_pool = sum(value >= np.float32(row.threshold) for value in pool.tolist())
        assert (row.images, row.correct) == (images, right)
        assert row.coverage == images / 300 and row.pool_coverage == in_pool / 77
        bounds = binomtest(right, images).proportion_ci(0.95, method="wilson")
        assert row.accuracy == pytest.approx((right / images, bounds.low, bounds.high), abs=1e-12)


def test_a_confidence_equal_to_the_threshold_reaches_it() -> None:
    confidence = np.array(THRESHOLDS, dtype=np.float32)  # 0.9 in single precision is below 0.9 in double
    assert [row.images for row in selective_accuracy(confidence, confidence > 0)] == [7, 6, 5, 4, 3, 2, 1]


def test_nothing_reaches_a_threshold_and_there_is_no_pool() -> None:
    row = selective_accuracy(np.array([0.55], np.float32), np.array([True]))[-1]
    assert (row.images, row.coverage, row.accuracy, row.pool_coverage) == (0, 0.0, None, None)
    assert "accuracy" not in row.to_summary()


def test_a_summary_gives_the_rows_back() -> None:
    rows = selective_accuracy(*drawn())
    assert [SelectiveAccuracy.from_summary(row.to_summary()) for row in rows] == rows


def test_the_lowest_threshold_that_may_be_trusted() -> None:
    def suggested(*correct: int) -> float | None:
        rows = [SelectiveAccuracy(t, 100 * (c >= 0), 0.5, max(c, 0)) for t, c in zip(THRESHOLDS, correct, strict=False)]
        row = trusted_threshold(rows)
        return None if row is None else row.threshold

    assert suggested(80, 96, 90, 99) == 0.6
    assert suggested(50, 70, 60) == 0.6  # none is trusted: the best one
    assert suggested(80, -1, -1) == 0.5 and suggested(-1, -1) is None


def test_test_images_are_calibrated_by_a_fit_on_others() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 400)
    scores = rng.normal(size=(400, 3)) + 1.5 * np.eye(3)[labels]
    probs = np.exp(4 * scores) / np.exp(4 * scores).sum(1, keepdims=True)  # far too confident
    calibrator = calibrate(probs, labels).calibrator
    fitted, crossed = calibrator.apply_to_probs(probs), cross_fitted(probs, labels)
    assert not np.allclose(fitted, crossed, atol=1e-6) and np.abs(fitted - crossed).max() < 0.1
    assert np.array_equal(cross_fitted(probs[:20], labels[:20]), probs[:20])  # too few for a calibrator
