"""95 % confidence intervals of proportions and of differences of proportions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

Bools = npt.NDArray[np.bool_]
Z = 1.959964
"""Standard deviations that hold 95 % of a normal distribution."""


class Interval(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


def wilson_interval(successes: int, total: int) -> Interval:
    """``successes / total`` with Wilson's score interval, which is sound near 0 and 1 and for few trials."""
    bounds = binomtest(successes, total).proportion_ci(confidence_level=0.95, method="wilson")
    return Interval(successes / total, float(bounds.low), float(bounds.high))


def paired_gain(correct: Bools, baseline_correct: Bools) -> Interval:
    """Difference of two accuracies on the same images (n,), with the interval of Bonett and Price (2012).

    Only images that exactly one of the two models gets right carry information. One such image of either kind is added,
    so that an interval is not empty if a few images show no difference.
    """
    total = len(correct)
    better, worse = int((correct & ~baseline_correct).sum()), int((baseline_correct & ~correct).sum())
    up, down = (better + 1) / (total + 2), (worse + 1) / (total + 2)
    half = Z * np.sqrt((up + down - (up - down) ** 2) / (total + 2))
    return Interval((better - worse) / total, max(-1.0, float(up - down - half)), min(1.0, float(up - down + half)))
