"""The nearest class mean with each row left out in turn (``ops.nearest_mean``) against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unissl.ops.nearest_mean import leave_one_out_correct


def slowly(x: np.ndarray, labels: np.ndarray) -> tuple[int, int]:
    """Rows whose class has no other are not predicted, but are in the mean of their class."""
    unit = [row / np.linalg.norm(row) for row in x]
    right, tested = 0, 0
    for i in range(len(x)):
        best, where = -np.inf, None
        if sum(label == labels[i] for label in labels) == 1:
            continue
        for c in sorted(set(labels.tolist())):
            mean = np.mean([unit[j] for j in range(len(x)) if j != i and labels[j] == c], axis=0)
            close = float(unit[i] @ mean / np.linalg.norm(mean))
            if close > best:
                best, where = close, c
        right, tested = right + int(where == labels[i]), tested + 1
    return right, tested


@pytest.mark.parametrize("seed", range(5))
def test_against_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.array([7, 0, 0, 3, 3, 3, 0, 3, 5, 5, 0, 5])  # a single 7; no 1, 2, 4 or 6
    x = rng.normal(size=(12, 4)) + 0.7 * rng.normal(size=(8, 4))[labels]
    expected = slowly(x, labels)
    assert 0 < expected[0] < expected[1] == 11
    assert leave_one_out_correct(torch.from_numpy(x), labels) == expected


def test_a_row_is_not_in_the_mean_that_predicts_it() -> None:
    """Opposite rows of one class: each is alone without the other, though the nearest mean with itself is its own."""
    x = torch.tensor([[1.0, -0.1], [-1.0, -0.1], [0.0, 1.0], [0.1, 1.0]])
    assert leave_one_out_correct(x, np.array([0, 0, 1, 1])) == (2, 4)


def test_single_labels_are_not_predicted() -> None:
    assert leave_one_out_correct(torch.eye(3), np.array([0, 1, 2])) == (0, 0)
