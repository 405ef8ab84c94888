"""The choice between the method and the simple baselines."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from unissl.baselines import LinearClassifier, NearestNeighbours
from unissl.evaluation.intervals import paired_gain
from unissl.run.cross_validation import CrossValidated
from unissl.run.shipping import Baselines, Shipped, baselines_summary, choose_classifier, sign_test

TRUTH = np.tile([0, 1], 20)
LINEAR = LinearClassifier(torch.zeros(2, 3), torch.zeros(2))
NEIGHBOURS = NearestNeighbours(torch.zeros(2, 3), np.array([0, 1]), 2, 1)


def wrong(count: int) -> np.ndarray:
    """Predictions of which the first ``count`` are wrong."""
    return np.where(np.arange(len(TRUTH)) < count, 1 - TRUTH, TRUTH)


def choose(method_wrong: int | None, **baselines_wrong: int) -> Shipped:
    classifiers = {name: NEIGHBOURS if name == "neighbours" else LINEAR for name in baselines_wrong}
    held_out = {name: CrossValidated(wrong(count), np.ones(len(TRUTH))) for name, count in baselines_wrong.items()}
    predicted = None if method_wrong is None else wrong(method_wrong)
    return choose_classifier("sage", predicted, TRUTH, Baselines(classifiers, held_out, {}))


def test_the_method_is_shipped_unless_a_baseline_is_clearly_better() -> None:
    assert choose(10, regression=12).name == "sage"
    assert choose(10, regression=10).name == "sage"
    chance = choose(10, regression=9)
    assert chance.name == "sage" and chance.reason.endswith("over 40 labels, a difference that may be chance")
    clear = choose(10, regression=4, spreading=7)
    assert clear.name == "regression" and clear.baseline is LINEAR
    assert clear.reason == "cross-validated accuracy 0.900 against 0.750 of sage, over 40 labels"


def test_votes_are_compared_but_not_shipped() -> None:
    assert choose(20, neighbours=0, regression=20).name == "sage"


def test_without_cross_validation_the_method_is_shipped() -> None:
    assert choose(None, regression=0).name == "sage"
    assert "no cross-validation" in choose(None, regression=0).reason


def test_three_labels_do_not_convince() -> None:
    """Three against none are 1.7 standard errors, and happen by chance in one of eight pairs of equal classifiers."""
    assert choose(3, regression=0).name == choose(4, regression=0).name == "sage"
    assert choose(5, regression=0).name == "regression"


def test_more_baselines_need_more_evidence() -> None:
    assert choose(5, regression=0, spreading=1).name == "sage"
    assert choose(6, regression=0, spreading=1).name == "regression"


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (3, 0), (5, 2), (2, 5), (12, 7)])
def test_sign_test_is_the_one_of_scipy(better: int, worse: int) -> None:
    images = np.arange(40)
    expected = binomtest(better, better + worse, alternative="greater").pvalue if better + worse else 1.0
    p_value = sign_test(images < 20, (images >= better) & (images < 20 + worse))
    assert p_value == pytest.approx(expected)


def test_summary_of_the_baselines() -> None:
    predicted = wrong(4)
    predicted[-1] = -1
    table = baselines_summary({"regression": wrong(8)}, TRUTH, predicted, 2)["regression"]
    assert table["accuracy"] == pytest.approx(31 / 39)
    assert table["gain"] == pytest.approx(4 / 39)
    interval = paired_gain(predicted[:-1] == TRUTH[:-1], wrong(8)[:-1] == TRUTH[:-1])
    assert (table["gain_low"], table["gain_high"]) == (interval.low, interval.high)
    assert baselines_summary({"regression": wrong(8)}, TRUTH, np.full(40, -1), 2) == {}
