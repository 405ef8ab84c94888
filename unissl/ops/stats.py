"""Distribution-agnostic reliability prioritisation (DRP): how far to trust a pseudo-label, Eq. (6)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def confidence_and_margin(probs: Tensor) -> tuple[Tensor, Tensor]:
    """q_max (n,), the highest class probability, and q_gap (n,), its lead over the second, from probs (n, C)."""
    first, second = probs.topk(2, dim=-1).values.unbind(-1)
    return first, first - second


class TruncatedGaussian(nn.Module):
    """Weights in [0, 1] for values judged against their own running mean and variance, Eq. (6).

    A value above the mean weighs 1; one below it falls off as a Gaussian of width sigma / n_sigma. The paper's text is
    ``n_sigma=1``, the released code 2. The state is updated before it is used; no gradient flows through it.
    """

    mean: Tensor
    var: Tensor

    def __init__(self, init_mean: float, init_var: float = 1.0, momentum: float = 0.999, n_sigma: float = 2.0) -> None:
        super().__init__()
        self.momentum = momentum
        self.n_sigma = n_sigma
        self.register_buffer("mean", torch.tensor(float(init_mean)))
        self.register_buffer("var", torch.tensor(float(init_var)))

    @torch.no_grad()
    def forward(self, values: Tensor) -> Tensor:
        """Take one batch of values (n,) into the running state, then weigh it."""
        values = values.to(self.mean.dtype)
        self._update(values)
        shortfall = (values - self.mean).clamp(max=0)
        # A variance of zero would turn the values at the mean into 0/0.
        var = self.var.clamp(min=torch.finfo(self.var.dtype).tiny)
        return torch.exp(-(self.n_sigma**2) * shortfall**2 / (2 * var))  # Eq. (6)

    def _update(self, values: Tensor) -> None:
        """Moving averages of the batch mean and of the unbiased batch variance, which one value does not have."""
        if len(values) > 0:
            self.mean.lerp_(values.mean(), 1 - self.momentum)
        if len(values) > 1:
            self.var.lerp_(values.var(), 1 - self.momentum)
