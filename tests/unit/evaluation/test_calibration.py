"""Temperature and calibration error against slow references, at their limits, and the honesty of what is stated."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from unissl.evaluation.calibration import (
    MIN_LABELS,
    calibrate,
    calibration_error,
    negative_log_likelihood,
    reliability,
)
from unissl.evaluation.calibrators import IDENTITY, TemperatureScaling
from unissl.evaluation.calibrators.temperature import MAX_TEMPERATURE, MIN_TEMPERATURE, fit_temperature
from unissl.evaluation.predictions import Predictions

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def made_up(temperature: float, n: int = 400, classes: int = 5, seed: int = 0) -> tuple[Floats, Labels]:
    """Probabilities that are too sure by a factor, with labels drawn from the true ones."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.5, (n, classes))
    truth = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = np.array([rng.choice(classes, p=row) for row in truth])
    scaled = np.exp(temperature * logits)
    return scaled / scaled.sum(1, keepdims=True), labels


def apply_temperature(probs: Floats, temperature: float) -> Floats:
    return TemperatureScaling(temperature=temperature).apply_to_probs(probs)


def loss_by_loops(probs: Floats, labels: Labels, temperature: float) -> float:
    total = 0.0
    for row, label in zip(probs, labels, strict=True):
        powers = [p ** (1 / temperature) for p in row]
        total -= math.log(powers[label] / sum(powers))
    return total / len(labels)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.5])
def test_temperature_against_a_grid(factor: float) -> None:
    probs, labels = made_up(factor, n=150)
    fitted = fit_temperature(probs, labels)
    best = loss_by_loops(probs, labels, fitted)
    assert negative_log_likelihood(apply_temperature(probs, fitted), labels) == pytest.approx(best, rel=1e-10)
    for other in (*np.geomspace(MIN_TEMPERATURE, MAX_TEMPERATURE, 41), fitted * 0.999, fitted * 1.001):
        assert best <= loss_by_loops(probs, labels, other) + 1e-12


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_the_temperature_that_spoilt_the_probabilities_is_found(factor: float) -> None:
    probs, labels = made_up(factor, n=20_000)
    assert fit_temperature(probs, labels) == pytest.approx(factor, rel=0.05)


def test_limits_of_the_temperature() -> None:
    right = np.array([[0.9, 0.1], [0.2, 0.8]])
    assert fit_temperature(right, np.array([0, 1])) == 1.0  # no error to learn from
    assert fit_temperature(right, np.array([1, 0])) == MAX_TEMPERATURE  # always wrong
    nearly = np.array([[0.6, 0.4]] * 400 + [[0.5, 0.5]])
    assert fit_temperature(nearly, np.array([0] * 400 + [1])) == MIN_TEMPERATURE


def test_probabilities_that_have_become_zero_are_survived() -> None:
    sure = np.array([[1.0, 0.0, 0.0]] * 60 + [[0.0, 1.0, 0.0]] * 60, dtype=np.float32)
    labels = np.array([0] * 50 + [2] * 10 + [1] * 60)
    fitted = fit_temperature(sure, labels)
    assert 1 < fitted <= MAX_TEMPERATURE and np.isfinite(apply_temperature(sure, fitted)).all()


def test_a_temperature_changes_no_answer_and_no_outlier_score() -> None:
    probs = made_up(1.0)[0].astype(np.float32)
    before = Predictions(probs)
    after = before.calibrated(TemperatureScaling(temperature=2.0))
    assert (after.classes == before.classes).all() and (after.confidence < before.confidence).all()
    np.testing.assert_array_equal(after.outlier_score, 1 - before.confidence)
    np.testing.assert_allclose(after.probs, np.sqrt(probs) / np.sqrt(probs).sum(1, keepdims=True), rtol=1e-5)
    assert before.calibrated(IDENTITY) is before
    detected = Predictions(probs, np.linspace(0, 1, len(probs), dtype=np.float32))
    np.testing.assert_array_equal(
        detected.calibrated(TemperatureScaling(temperature=3.0)).outlier_score, detected.outlier_score
    )


def test_calibration_error_by_hand() -> None:
    confidence, right = np.array([0.55, 0.6, 0.95, 1.0]), np.array([True, False, True, True])
    bins = reliability(confidence, right)
    assert [b.images for b in bins] == [2, 2]
    assert calibration_error(bins) == pytest.approx((2 * abs(0.575 - 0.5) + 2 * abs(0.975 - 1)) / 4)


def test_what_is_stated_is_of_labels_that_had_no_part_in_the_fit() -> None:
    """By hand: each half at the temperature of the other. The temperature that is shipped is that of all labels."""
    probs, labels = made_up(3.0, n=101)
    found = calibrate(probs, labels)
    order = np.random.default_rng(0).permutation(101)
    one, other = order[:50], order[50:]
    scaled = np.empty_like(probs)
    scaled[one] = apply_temperature(probs[one], fit_temperature(probs[other], labels[other]))
    scaled[other] = apply_temperature(probs[other], fit_temperature(probs[one], labels[one]))
    assert found.nll_after == pytest.approx(negative_log_likelihood(scaled, labels))
    assert found.ece_after == pytest.approx(calibration_error(reliability(scaled.max(1), scaled.argmax(1) == labels)))
    assert found.ece == pytest.approx(calibration_error(reliability(probs.max(1), probs.argmax(1) == labels)))
    assert (
        found.calibrator == TemperatureScaling(temperature=fit_temperature(probs, labels)) != IDENTITY
        and found.labels == 101
    )
    assert found.ece_after < found.ece


def test_too_few_labels_or_no_gain_leave_the_temperature_alone() -> None:
    probs, labels = made_up(3.0, n=MIN_LABELS)
    assert calibrate(probs, labels).calibrator != IDENTITY
    few = calibrate(probs[1:], labels[1:])
    assert few.calibrator == IDENTITY and "fewer than 50" in few.note and few.ece_after == few.ece
    perfect = np.full((60, 2), [0.9, 0.1])
    kept = calibrate(perfect, np.zeros(60, dtype=np.int64))
    assert kept.calibrator == IDENTITY and "no calibrator improved" in kept.note
    with pytest.raises(ValueError, match="no labels"):
        calibrate(probs[:0], labels[:0])
