"""95 % confidence intervals of proportions and of differences of proportions."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from unissl.types import Bools

Z = 1.959963984540054
"""Standard deviations that hold 95 % of a normal distribution."""


class Interval(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


def wilson_interval(successes: float, total: float) -> Interval:
    """``successes / total`` with Wilson's score interval, which is sound near 0 and 1 and for few trials.

    Trials that are not independent count as fewer, so the number need not be whole.
    """
    value, weight = successes / total, Z**2 / total
    centre = (value + weight / 2) / (1 + weight)
    half = Z / (1 + weight) * math.sqrt(value * (1 - value) / total + weight / (4 * total))
    low, high = max(0.0, centre - half) if successes else 0.0, min(1.0, centre + half) if successes < total else 1.0
    return Interval(value, low, high)


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
