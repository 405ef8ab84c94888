"""Intervals against slow resampling and known values."""

from __future__ import annotations

import numpy as np
import pytest

from unissl.report import intervals
from unissl.report.intervals import Interval


def test_gain_equals_resampling_the_images_one_by_one() -> None:
    rng = np.random.default_rng(1)
    ours, theirs = rng.random(200) < 0.8, rng.random(200) < 0.65
    slow = []
    for _ in range(4000):
        rows = rng.integers(0, 200, 200)
        slow.append(ours[rows].mean() - theirs[rows].mean())
    found = intervals.paired_gain(ours, theirs)
    assert found.value == pytest.approx(ours.mean() - theirs.mean())
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])), abs=0.01)


def test_gain_is_paired() -> None:
    """Two models that are wrong on the same images differ less than two that are wrong on different ones."""
    half = np.arange(100) < 50
    assert intervals.paired_gain(half, half) == Interval(0.0, 0.0, 0.0)
    apart = intervals.paired_gain(half, ~half)
    assert apart.value == 0 and apart.high == pytest.approx(0.2, abs=0.03)


def test_accuracy_interval_is_wilsons() -> None:
    assert intervals.accuracy_interval(8, 10) == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-4)
    assert intervals.accuracy_interval(10, 10) == pytest.approx((1.0, 0.7225, 1.0), abs=1e-4)
    assert intervals.accuracy_interval(0, 10).low == 0
