"""What the training and its measurements say: too short, too sure, too few images to know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unissl.evaluation.calibration import Bin
from unissl.report.findings.finding import Finding
from unissl.report.formatting import signed

FEW_TEST_IMAGES = 100
MISCALIBRATED = 0.1
"""Expected calibration error above which probabilities should not be taken at their word."""
RISING = 0.01
"""Rise of accuracy over the last fifth of a run that says it was too short."""


def too_short(curve: Sequence[float], images: int) -> Finding | None:
    """Accuracy that still rose at the end, by more than so few test images would by chance: the last fifth of the
    evaluations against the fifth before."""
    part = len(curve) // 5
    if not part:
        return None
    rise = float(np.mean(curve[-part:]) - np.mean(curve[-2 * part : -part]))
    if rise <= max(RISING, 0.5 / max(1, images) ** 0.5):  # half, the most that a standard error can be
        return None
    return Finding(
        "notice",
        "The run was too short",
        f"Accuracy was still rising when it ended: {signed(rise)} points over the last fifth of the training.",
        "Train again with more --steps or --minutes.",
    )


def miscalibrated(error: float | None, bins: Sequence[Bin]) -> Finding | None:
    if error is None or error <= MISCALIBRATED:
        return None
    too_sure = sum(b.images * (b.confidence - b.accuracy) for b in bins) > 0
    return Finding(
        "notice",
        f"The model is too {'sure of itself' if too_sure else 'modest'}",
        f"On average its confidence is {100 * error:.0f} points away from how often it is right.",
        "Read its confidence as a ranking, not as a chance, or choose a threshold on images whose class you know.",
    )


def few_images(count: int, cross_validated: bool) -> Finding | None:
    """Too few test images, or labels behind a cross-validation, for a number to lean on."""
    if not 0 < count < FEW_TEST_IMAGES:
        return None
    return Finding(
        "notice",
        f"Only {count} {'labels behind the estimate' if cross_validated else 'test images'}",
        "Accuracies and gains on so few images vary a lot, and their intervals are rough.",
        f"Test on {FEW_TEST_IMAGES} images or more with --test before you rely on the numbers.",
    )
