"""Warnings in plain words, and when they are due."""

from __future__ import annotations

import numpy as np
import pytest

from unissl.training.health import collapse, nothing_selected


@pytest.mark.parametrize(
    ("predicted", "num_classes", "due"),
    [
        ([1, 1, 1], 2, True),
        ([0, 1, 1], 2, False),
        ([2, 2], 3, True),
        ([0, 1], 3, False),
        ([0, 1, 2], 10, True),
        ([0, 1, 2, 3], 10, False),
        (list(range(33)), 100, True),
        (list(range(34)), 100, False),
        ([*[3] * 96, 0, 1, 2, 4], 5, True),
        ([*[3] * 90, 0, 1, 2, 4], 5, True),
        ([*[3] * 70, 0, 1, 2, 4], 5, False),
    ],
)
def test_collapse_is_few_classes_or_nearly_all_in_one(predicted: list[int], num_classes: int, due: bool) -> None:
    assert (collapse(np.array(predicted), [str(number) for number in range(num_classes)]) is not None) == due


def test_collapse_names_the_class() -> None:
    names = ["cat", "dog", "fox", "red panda", *(f"class {number}" for number in range(6))]
    message = collapse(np.array([3, 3, 3, 1]), names)
    assert message is not None
    assert "Only 2 of 10 classes are predicted, 75% of the images as class 'red panda'" in message
    assert "optim.lr" in message


@pytest.mark.parametrize(("share", "due"), [(None, False), (0.0, True), (0.0009, True), (0.001, False), (1.0, False)])
def test_nothing_selected(share: float | None, due: bool) -> None:
    message = nothing_selected(share)
    assert (message is not None) == due
    if message is not None:
        assert "method.threshold" in message and "sage" in message
