"""Metrics by hand, with classes missing, with two classes, and accuracy three ways."""

from __future__ import annotations

import numpy as np
import pytest

from unissl.evaluation.diagnostics import pseudo_label_quality
from unissl.evaluation.metrics import accuracy, accuracy_summary, score


def test_score_by_hand() -> None:
    found = score(np.array([0, 0, 0, 1, 2, 2]), np.array([0, 0, 1, 1, 2, 0]), 3)
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["per_class_recall"] == pytest.approx([2 / 3, 1, 1 / 2])
    assert found["balanced_accuracy"] == pytest.approx((2 / 3 + 1 + 1 / 2) / 3)
    assert found["confusion_matrix"] == [[2, 1, 0], [0, 1, 0], [1, 0, 1]]


def test_a_class_that_is_missing_from_the_test_set_has_no_recall_and_does_not_count() -> None:
    found = score(np.array([0, 0, 3]), np.array([0, 1, 3]), 4)
    assert found["per_class_recall"] == [0.5, None, None, 1.0]
    assert found["balanced_accuracy"] == 0.75
    assert np.shape(found["confusion_matrix"]) == (4, 4)
    assert found["confusion_matrix"][0] == [1, 1, 0, 0]


def test_two_classes_of_which_one_occurs() -> None:
    found = score(np.array([1, 1]), np.array([1, 1]), 2)
    assert found["per_class_recall"] == [None, 1.0]
    assert found["confusion_matrix"] == [[0, 0], [0, 2]]
    assert accuracy(np.array([0, 1]), np.array([1, 0])) == 0.0


def test_three_ways() -> None:
    curve = [0.9] + [0.1] * 10 + [0.3] * 19 + [0.5]
    assert accuracy_summary(curve) == {"last": 0.5, "mean_last_20": pytest.approx((19 * 0.3 + 0.5) / 20), "best": 0.9}
    assert accuracy_summary([0.2]) == {"last": 0.2, "mean_last_20": 0.2, "best": 0.2}


def test_pseudo_label_quality() -> None:
    truth, predicted = np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1])
    assert pseudo_label_quality(truth, predicted, 4) == {
        "truth_known": True,
        "accuracy": 0.5,
        "predicted": [1, 3, 0, 0],
        "true_positives": [1, 1, 0, 0],
        "false_positives": [0, 2, 0, 0],
        "truth": [2, 1, 1, 0],
        "ood": 0,
    }
    assert pseudo_label_quality(np.full(4, -1), predicted, 4) == {"truth_known": False, "predicted": [1, 3, 0, 0]}
