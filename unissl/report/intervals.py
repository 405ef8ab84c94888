"""Shares and differences with what chance allows: 95 % intervals over the images that were asked about."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Z = 1.959964
"""What 95 % of a normal distribution lie within, in standard deviations."""


class Interval(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


def accuracy_interval(right: int, total: int) -> Interval:
    """Share of right answers with Wilson's interval, which behaves near 0 and 1 and for few images."""
    share, z2 = right / total, Z**2
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = np.sqrt(z2 * share * (1 - share) / total + z2**2 / (4 * total**2)) / (1 + z2 / total)
    return Interval(share, max(0.0, float(middle - half)), min(1.0, float(middle + half)))


def paired_gain(ours: Bools, theirs: Bools) -> Interval:
    """Difference of two accuracies on the same images, with the interval of Bonett and Price (2012).

    Only images that one gets right and the other does not tell them apart. One more of either kind is counted than
    there was: where a dozen images show no difference there may be one all the same.
    """
    total = len(ours)
    better, worse = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    up, down = (better + 1) / (total + 2), (worse + 1) / (total + 2)
    half = Z * np.sqrt((up + down - (up - down) ** 2) / (total + 2))
    return Interval((better - worse) / total, max(-1.0, float(up - down - half)), min(1.0, float(up - down + half)))
