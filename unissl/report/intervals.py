"""Shares and differences with what chance allows: 95 % intervals over the images that were asked about."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
DRAWS = 10_000
"""Resamples of the images behind an interval."""


class Interval(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


def accuracy_interval(right: int, total: int) -> Interval:
    """Share of right answers with Wilson's interval, which behaves near 0 and 1 and for few images."""
    share, z2 = right / total, 1.959964**2
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = np.sqrt(z2 * share * (1 - share) / total + z2**2 / (4 * total**2)) / (1 + z2 / total)
    return Interval(share, max(0.0, float(middle - half)), min(1.0, float(middle + half)))


def paired_gain(ours: Bools, theirs: Bools) -> Interval:
    """Difference of two accuracies on the same images, with a bootstrap interval over those images.

    An image counts +1, 0 or -1, so resampling images is drawing the three counts from a multinomial distribution.
    """
    total = len(ours)
    better, worse = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    shares = np.array([better, worse, total - better - worse]) / total
    drawn = np.random.default_rng(0).multinomial(total, shares, size=DRAWS)
    low, high = np.quantile((drawn[:, 0] - drawn[:, 1]) / total, [0.025, 0.975])
    return Interval((better - worse) / total, float(low), float(high))
