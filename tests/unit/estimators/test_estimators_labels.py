"""Which rows of y have a label, and what is refused because it could be read in two ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import DataConversionWarning

from unissl.errors import UserError
from unissl.estimators.labels import read_labels


@pytest.mark.parametrize(
    ("y", "classes", "codes"),
    [
        ([0, 1, -1, 1], [0, 1], [0, 1, -1, 1]),
        (np.array([7, -1, 3], dtype=np.int8), [3, 7], [1, -1, 0]),
        (np.array([2.0, 0.0, -1.0]), [0.0, 2.0], [1, 0, -1]),
        (np.array([True, False]), [False, True], [1, 0]),
        (np.array([3, 1, 2], dtype=np.uint8), [1, 2, 3], [2, 0, 1]),
        ([-2, -3, 5], [-3, -2, 5], [1, 0, 2]),  # without a -1 nothing is unclear
        (["cat", "ant", -1], ["ant", "cat"], [1, 0, -1]),
        (["cat", None, "ant", float("nan")], ["ant", "cat"], [1, -1, 0, -1]),
        (np.array(["cat", "ant"]), ["ant", "cat"], [1, 0]),
        (np.array(["cat", np.int64(-1), "ant"], dtype=object), ["ant", "cat"], [1, -1, 0]),
        (np.array([4, None, 2], dtype=object), [2, 4], [1, -1, 0]),
        (("b", "a", -1.0), ["a", "b"], [1, 0, -1]),
    ],
)
def test_classes_in_order_and_minus_one_for_none(y: Any, classes: list[Any], codes: list[int]) -> None:
    found, numbers = read_labels(y)
    assert found.tolist() == classes
    assert numbers.tolist() == codes and numbers.dtype == np.int64


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        ([-1, 1, 1, -1], "give 0 instead"),
        ([-1.0, 1.0], "give 0 instead"),
        ([-2, -1, 0, 1], "negative class -2"),
        ([-1, -1], "no label at all"),
        ([0, 0], "one class only"),
        (["cat", "cat", None], "one class only"),
        (np.array(["cat", "dog", "-1"]), "the text '-1'"),
        (["cat", "dog", "-1"], "the text '-1'"),
        (["cat", "dog", ""], "the text ''"),
        (np.array(["cat", "dog", 3], dtype=object), "mixes text and numbers"),
        (np.array([0.0, 1.0, np.nan]), "give -1 to rows without"),
        (np.array([0.0, 1.0, np.inf]), "infinity"),
        (np.array([0.5, 1.5, -1.0]), "Unknown label type"),
        (np.array([(1, 2), {}, 3], dtype=object), "Unknown label type"),
        (np.zeros((3, 2)), "1d array"),
    ],
)
def test_unclear_labels_are_refused_as_value_errors(y: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_labels(y)


def test_our_refusals_are_also_user_errors() -> None:
    with pytest.raises(UserError):
        read_labels([-1, 1])


def test_a_column_is_taken_with_a_warning() -> None:
    with pytest.warns(DataConversionWarning):
        assert read_labels(np.array([[0], [1], [-1]]))[1].tolist() == [0, 1, -1]
