"""Multinomial logistic regression on soft targets: scikit-learn's takes hard ones only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

ROUNDS = 30


def fit(x: Tensor, targets: Tensor, weights: Tensor, rounds: int = ROUNDS) -> tuple[Tensor, Tensor]:
    """Minimise sum_i w_i CE(t_i, softmax(W x_i + b)) + |W|^2 / 2 over W (C, D) and b (C,), by L-BFGS from zero.

    ``x`` is (n, D), ``targets`` (n, C) with rows that sum to 1, ``weights`` (n,). With hard targets, weights of 1 and
    enough rounds these are the coefficients of scikit-learn's LogisticRegression for three classes or more; for two it
    has one vector of coefficients in place of two, and so half of the penalty.
    """
    classes, width = targets.shape[1], x.shape[1]
    weighted = targets * weights[:, None]
    total = float(weights.sum())

    def loss_and_gradient(flat: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        both = torch.from_numpy(flat).to(x.dtype).view(classes, width + 1)
        weight, bias = both[:, :-1], both[:, -1]
        log_probs = torch.addmm(bias, x, weight.T).log_softmax(1)
        loss = -(weighted * log_probs).sum().double() + weight.double().square().sum() / 2
        error = log_probs.exp() * weights[:, None] - weighted
        gradient = torch.cat([error.T @ x + weight, error.sum(0)[:, None]], 1)
        return float(loss) / total, (gradient.double() / total).flatten().numpy()

    start = np.zeros(classes * (width + 1))
    options = {"maxiter": rounds, "gtol": 1e-7, "ftol": 0.0}
    with threadpool_limits(1, user_api="blas"):  # the number of scipy's threads would change the last bits
        result = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
    both = torch.from_numpy(result.x).to(x.dtype).view(classes, width + 1)
    return both[:, :-1].contiguous(), both[:, -1].contiguous()
