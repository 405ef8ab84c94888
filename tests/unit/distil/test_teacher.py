"""Soft labels: given ones stay, neighbours decide where labels leave it open, both features have their shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from unissl.distil.teacher import LEARNT_SHARE, concat_features, logistic_regression, sharpen, soft_labels
from unissl.features import FEATURE_NORM
from unissl.ops.neighbours import nearest
from unissl.types import UNLABELLED


def two_groups() -> tuple[torch.Tensor, np.ndarray]:
    """Points on a circle: two labelled ones first, then a group of each class, so placed that the line between the
    labelled ones cuts off the edge of the first group. And the truth."""
    angles = np.concatenate([[0.0, 2.2], np.linspace(0.7, 1.2, 15), np.linspace(2.2, 2.7, 15)])
    truth = np.concatenate([[0, 1], np.repeat([0, 1], 15)])
    return torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)], 1)).float(), truth


def with_pool(labels: np.ndarray, count: int) -> np.ndarray:
    """Labels of the first of ``count`` rows; the others have none."""
    return np.concatenate([labels, np.full(count - len(labels), UNLABELLED)])


def test_neighbours_correct_what_regression_alone_gets_wrong() -> None:
    x, truth = two_groups()
    alone = logistic_regression(concat_features([x], x), with_pool(truth[:2], len(x)), 2).argmax(1)
    soft = soft_labels([x], x, with_pool(truth[:2], len(x)), 2, k_neighbours=10).argmax(1).numpy()
    assert (alone != truth).sum() >= 3 and (soft == truth).all()


def test_given_labels_stay_and_rows_are_probabilities() -> None:
    x, _ = two_groups()
    soft = soft_labels([x], x, with_pool(np.array([1, 0]), len(x)), 3, k_neighbours=5)
    assert soft[0].tolist() == [0, 1, 0] and soft[1].tolist() == [1, 0, 0]
    assert torch.allclose(soft.sum(1), torch.ones(len(x))) and (soft[:, 2] == 0).all()


def test_features_side_by_side_have_their_shares_whatever_their_lengths() -> None:
    rng = torch.Generator().manual_seed(0)
    features, learnt = torch.randn(6, 9, generator=rng) * 7, torch.randn(6, 4, generator=rng) * 0.01
    joint = concat_features([features, 3 * features], learnt)
    assert torch.allclose(joint.norm(dim=1), torch.full((6,), FEATURE_NORM))
    assert torch.allclose(joint[:, 18:].square().sum(1), torch.full((6,), FEATURE_NORM**2 * LEARNT_SHARE))
    assert torch.allclose(joint[:, :9], joint[:, 9:18])
    alone = concat_features([features, learnt])
    assert torch.allclose(alone[:, 9:].square().sum(1), torch.full((6,), FEATURE_NORM**2 / 2))


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Of the features that regression and neighbours get, in the order of the calls."""
    found: list[tuple[str, int]] = []

    def spied(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(x: torch.Tensor, *rest: Any, **named: Any) -> Any:
            found.append((function.__name__, x.shape[1]))
            return function(x, *rest, **named)

        return call

    for function in (logistic_regression, nearest):
        monkeypatch.setattr(f"unissl.distil.teacher.{function.__name__}", spied(function))
    return found


CLEAR, RANDOM = np.tile([0, 1], 10), np.repeat([0, 1, 0, 1], 5)
"""Labels of two groups of points that alternate, and labels that do not fit the groups."""
ON_CROPS, ON_BOTH, BY_BOTH = ("logistic_regression", 4), ("logistic_regression", 7), ("nearest", 7)


def soft_labels_of_two_groups(labels: np.ndarray) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    x = torch.eye(2).repeat(20, 1) + 0.1 * torch.randn(40, 2, generator=rng)
    return soft_labels([x, x], torch.randn(40, 3, generator=rng), with_pool(labels, 40), 2, k_neighbours=2)


@pytest.mark.parametrize("labels", [CLEAR, RANDOM], ids=["clear", "random"])
def test_in_a_small_pool_learnt_features_are_for_the_neighbours_alone(
    labels: np.ndarray, widths: list[tuple[str, int]]
) -> None:
    soft_labels_of_two_groups(labels)
    assert widths == [ON_CROPS, BY_BOTH]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [(CLEAR, [ON_CROPS, BY_BOTH]), (RANDOM, [ON_CROPS, ON_BOTH, BY_BOTH]), (CLEAR[:4], [ON_CROPS, ON_BOTH, BY_BOTH])],
    ids=["labels suffice", "they do not fit", "too few to show it"],
)
def test_in_a_large_pool_they_join_the_regression_unless_the_labels_suffice(
    labels: np.ndarray, expected: list[tuple[str, int]], widths: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unissl.distil.teacher.LARGE_POOL", 19)
    soft_labels_of_two_groups(labels)
    assert widths == expected


def test_regression_is_scikit_learns_on_the_labelled_rows() -> None:
    x, _ = two_groups()
    labels = np.array([0, 2, 0, 2])
    expected = LogisticRegression(max_iter=300).fit(x[:4].numpy(), labels).predict_proba(x.numpy())
    got = logistic_regression(x, with_pool(labels, len(x)), 4)
    np.testing.assert_allclose(got[:, [0, 2]], expected)
    assert not got[:, [1, 3]].any()


def test_power_of_probabilities() -> None:
    np.testing.assert_allclose(sharpen(np.array([[0.6, 0.4]]), 2.0), [[0.36 / 0.52, 0.16 / 0.52]])


def test_labelled_rows_may_be_anywhere() -> None:
    x, truth = two_groups()
    labels = with_pool(truth[:2], len(x))
    expected = soft_labels([x], x, labels, 2, k_neighbours=10)
    moved = soft_labels([x.flip(0)], x.flip(0), labels[::-1].copy(), 2, k_neighbours=10)
    torch.testing.assert_close(moved.flip(0), expected, rtol=1e-3, atol=1e-4)
