"""Calibration: how far confidences are from accuracies, and the calibrator that a run ships.

A calibrator is measured on labels that it was not fitted on: each half of the held-out labels is calibrated by a fit
on the other half. The calibrator with the lowest cross-fitted negative log-likelihood is then fitted on all of them. It
is shipped only if it beats the uncalibrated probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from unissl.evaluation.calibrators import IDENTITY, Calibrator, all_calibrators, log_probabilities
from unissl.evaluation.calibrators.base import Floats, Labels
from unissl.types import Bools

BINS = 10
"""Equal intervals of confidence in the reliability diagram."""
MIN_LABELS = 50
"""With fewer labels no calibrator is fitted."""


@dataclass(frozen=True)
class Bin:
    """Images of similar confidence: their mean confidence, accuracy and number."""

    confidence: float
    accuracy: float
    images: int


def reliability(confidence: Floats, correct: Bools) -> list[Bin]:
    """Images grouped by confidence in equal intervals (low, high]; empty ones are left out."""
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    groups = [bins == b for b in range(BINS)]
    return [Bin(float(confidence[g].mean()), float(correct[g].mean()), int(g.sum())) for g in groups if g.any()]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Expected calibration error: the mean gap between confidence and accuracy, bins weighted by their size."""
    return sum(b.images * abs(b.accuracy - b.confidence) for b in bins) / sum(b.images for b in bins)


def negative_log_likelihood(probs: Floats, labels: Labels) -> float:
    """-log p of the true class, mean over the rows."""
    log_probs = log_softmax(log_probabilities(probs), axis=1)
    return float(-log_probs[np.arange(len(labels)), labels].mean())


@dataclass(frozen=True)
class Calibration:
    """The shipped calibrator with its errors. Both ``after`` values are cross-fitted."""

    calibrator: Calibrator
    labels: int
    ece: float
    """Expected calibration error of the uncalibrated probabilities."""
    ece_after: float
    nll: float
    nll_after: float
    note: str
    """Why this calibrator was chosen."""

    def to_summary(self) -> dict[str, Any]:
        """Kind and parameters of the calibrator with the errors, as in summary.json."""
        errors = {name: getattr(self, name) for name in ("labels", "ece", "ece_after", "nll", "nll_after", "note")}
        return {**self.calibrator.to_manifest(), **errors}


def calibrate(probs: Floats, labels: Labels) -> Calibration:
    """The best calibrator for probs (n, C) of n images whose labels (n,) no loss has seen."""
    if not len(labels):
        raise ValueError("no labels to calibrate with")
    ece, nll = _ece(probs, labels), negative_log_likelihood(probs, labels)

    def uncalibrated(note: str) -> Calibration:
        return Calibration(IDENTITY, len(labels), ece, ece, nll, nll, note)

    if len(labels) < MIN_LABELS:
        return uncalibrated(f"fewer than {MIN_LABELS} held-out labels, so no calibrator was fitted")
    cross_fitted = {kind: _cross_fit(calibrator, probs, labels) for kind, calibrator in all_calibrators().items()}
    losses = {kind: negative_log_likelihood(calibrated, labels) for kind, calibrated in cross_fitted.items()}
    best = min(losses, key=losses.__getitem__)
    if losses[best] >= nll:
        return uncalibrated("no calibrator improved the likelihood of labels that it was not fitted on")
    note = "fitted on all held-out labels; the errors after calibration are cross-fitted over two halves"
    calibrator = all_calibrators()[best].fit(probs, labels)
    return Calibration(calibrator, len(labels), ece, _ece(cross_fitted[best], labels), nll, losses[best], note)


def cross_fitted(probs: Floats, labels: Labels) -> npt.NDArray[np.float64]:
    """Probabilities as the calibrator that :func:`calibrate` ships would give them for images that it was not fitted
    on."""
    calibrator = calibrate(probs, labels).calibrator
    if calibrator == IDENTITY:
        return np.asarray(probs, dtype=np.float64)
    return _cross_fit(type(calibrator), probs, labels)


def _ece(probs: Floats, labels: Labels) -> float:
    return calibration_error(reliability(probs.max(1), probs.argmax(1) == labels))


def _cross_fit(calibrator: type[Calibrator], probs: Floats, labels: Labels) -> npt.NDArray[np.float64]:
    """Each half calibrated by a fit on the other half; the halves are drawn with a fixed seed."""
    order = np.random.default_rng(0).permutation(len(labels))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    calibrated = np.empty(probs.shape)
    for rows, fit_rows in (halves, halves[::-1]):
        calibrated[rows] = calibrator.fit(probs[fit_rows], labels[fit_rows]).apply_to_probs(probs[rows])
    return calibrated
