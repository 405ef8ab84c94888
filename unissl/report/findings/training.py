"""Findings about the training and its evaluation: too short, miscalibrated, too few test images."""

from __future__ import annotations

import numpy as np

from unissl.report.data import ReportData
from unissl.report.findings import Finding, finding
from unissl.report.formatting import signed

MIN_TEST_IMAGES = 100
MAX_CALIBRATION_ERROR = 0.1
"""Expected calibration error above which confidences should not be read as probabilities."""
MIN_RISE = 0.01
"""Rise of the accuracy over the last fifth of a run from which on the run was too short."""


@finding
def too_short(data: ReportData) -> Finding | None:
    """The accuracy still rose at the end: the last fifth of the evaluations is better than the fifth before, by more
    than chance explains on so few test images."""
    curve, fifth = data.accuracy_curve, len(data.accuracy_curve) // 5
    if not fifth:
        return None
    rise = float(np.mean(curve[-fifth:]) - np.mean(curve[-2 * fifth : -fifth]))
    if rise <= max(MIN_RISE, 0.5 / max(1, data.headline.images) ** 0.5):  # a standard error is at most 0.5 / sqrt(n)
        return None
    return Finding(
        "notice",
        "The run was too short",
        f"The accuracy was still rising at the end: {signed(rise)} points over the last fifth of the training.",
        "Train again with more --steps or --minutes.",
    )


@finding
def miscalibrated(data: ReportData) -> Finding | None:
    error = data.calibration_error
    if error is None or error <= MAX_CALIBRATION_ERROR:
        return None
    overconfident = sum(b.images * (b.confidence - b.accuracy) for b in data.bins) > 0
    return Finding(
        "notice",
        f"The model is {'overconfident' if overconfident else 'underconfident'}",
        f"Confidence and accuracy differ by {100 * error:.0f} points on average.",
        "Use the confidence as a ranking, not as a probability, or choose a threshold on labelled images.",
    )


@finding
def few_test_images(data: ReportData) -> Finding | None:
    """Too few test images, or cross-validated labels, for a precise accuracy."""
    count = data.headline.images
    if not 0 < count < MIN_TEST_IMAGES:
        return None
    return Finding(
        "notice",
        f"Only {count} {'cross-validated labels' if data.headline.source == 'cross-validation' else 'test images'}",
        "Accuracies and gains on so few images vary a lot, and their intervals are wide.",
        f"Use {MIN_TEST_IMAGES} test images or more (--test) before you rely on the numbers.",
    )
