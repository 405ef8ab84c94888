"""Intervals against slow resampling and known values."""

from __future__ import annotations

import numpy as np
import pytest

from unissl.evaluation import intervals


def test_gain_of_many_images_equals_resampling_them_one_by_one() -> None:
    rng = np.random.default_rng(1)
    ours, theirs = rng.random(400) < 0.8, rng.random(400) < 0.65
    slow = []
    for _ in range(4000):
        rows = rng.integers(0, 400, 400)
        slow.append(ours[rows].mean() - theirs[rows].mean())
    found = intervals.paired_gain(ours, theirs)
    assert found.value == pytest.approx(ours.mean() - theirs.mean())
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])), abs=0.01)


@pytest.mark.parametrize("images", [8, 12, 40, 200])
@pytest.mark.parametrize(("better", "worse"), [(0.0, 0.0), (0.05, 0.0), (0.1, 0.05), (0.3, 0.1), (0.02, 0.4)])
def test_the_interval_holds_the_true_gain_as_often_as_it_says(images: int, better: float, worse: float) -> None:
    """Also where a dozen labels are all there is, and where most draws show no difference at all."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(2000):
        kind = rng.choice(3, images, p=[better, worse, 1 - better - worse])
        found = intervals.paired_gain(kind != 1, kind != 0)
        held += found.low <= better - worse <= found.high
    assert held / 2000 >= 0.93


def test_gain_is_paired_and_never_certain() -> None:
    """Two models that are wrong on the same images differ less than two that are wrong on different ones."""
    half = np.arange(100) < 50
    alike, apart = intervals.paired_gain(half, half), intervals.paired_gain(half, ~half)
    assert alike.value == apart.value == 0
    assert alike.high == -alike.low == pytest.approx(1.959964 * np.sqrt(2) / 102)
    assert apart.high == -apart.low == pytest.approx(0.195, abs=0.002)
    few = intervals.paired_gain(half[:12], half[:12])
    assert few.value == 0 and few.high > 0.19
    assert intervals.paired_gain(np.ones(2, bool), np.zeros(2, bool)).high == 1.0


def test_wilson_interval() -> None:
    assert intervals.wilson_interval(8, 10) == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-4)
    assert intervals.wilson_interval(10, 10) == pytest.approx((1.0, 0.7225, 1.0), abs=1e-4)
    assert intervals.wilson_interval(0, 10).low == 0
