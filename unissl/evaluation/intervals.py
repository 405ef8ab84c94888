"""95 % confidence intervals of proportions."""

from __future__ import annotations

from typing import NamedTuple

from scipy.stats import binomtest


class Interval(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


def wilson_interval(successes: int, total: int) -> Interval:
    """``successes / total`` with Wilson's score interval, which is sound near 0 and 1 and for few trials."""
    bounds = binomtest(successes, total).proportion_ci(confidence_level=0.95, method="wilson")
    return Interval(successes / total, float(bounds.low), float(bounds.high))
