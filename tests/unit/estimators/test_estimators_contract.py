"""scikit-learn's own checks of an estimator, with the few that cannot hold and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks

from unissl import SAGEClassifier, SemiSupervisedClassifier

EXCEPTIONS = {
    "check_classifiers_classes": "ends with a y of -1 and 1 alone, which is refused: -1 means no label",
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [SAGEClassifier(steps=30), SemiSupervisedClassifier("labels-only", steps=30)],
    expected_failed_checks=lambda estimator: EXCEPTIONS,
    xfail_strict=True,
)
def test_scikit_learn_checks(estimator: BaseEstimator, check: Callable[[Any], None]) -> None:
    check(estimator)
