"""Logistic regression on soft targets against scikit-learn's, which knows hard ones and weights."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from unissl.ops.soft_regression import fit


def some_rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    return rng.normal(size=(60, 4)) + np.eye(3)[y] @ rng.normal(size=(3, 4)), y


def test_hard_targets_are_scikit_learns() -> None:
    x, y = some_rows()
    weights = np.random.default_rng(1).uniform(0.5, 2, 60)
    sklearn_model = LogisticRegression(tol=1e-10, max_iter=10_000).fit(x, y, sample_weight=weights)
    weight, bias = fit(torch.from_numpy(x), torch.eye(3).double()[y], torch.from_numpy(weights), rounds=1000)
    np.testing.assert_allclose(weight.numpy(), sklearn_model.coef_, atol=1e-4)
    np.testing.assert_allclose(
        (bias - bias.mean()).numpy(), sklearn_model.intercept_ - sklearn_model.intercept_.mean(), atol=1e-4
    )


def test_soft_targets_are_rows_said_several_times() -> None:
    """A target (0.7, 0.2, 0.1) is that row with each class, weighted so."""
    x, _ = some_rows()
    soft = np.random.default_rng(2).dirichlet(np.ones(3), 60)
    repeated, classes = np.repeat(x, 3, axis=0), np.tile(np.arange(3), 60)
    sklearn_model = LogisticRegression(tol=1e-10, max_iter=10_000).fit(repeated, classes, sample_weight=soft.ravel())
    weight, _ = fit(torch.from_numpy(x), torch.from_numpy(soft), torch.ones(60).double(), rounds=1000)
    np.testing.assert_allclose(weight.numpy(), sklearn_model.coef_, atol=1e-4)
