"""Distribution alignment: predictions rescaled so that, on average, they have a target class distribution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EPSILON = 1e-6
"""Added to target and predicted shares, so that a class that was never predicted is not divided by zero."""


class UniformAlignment(nn.Module):
    """p' = normalise(p (1/C + eps) / (mean p + eps)): often predicted classes lose, rare ones gain.

    The mean prediction (C,) is a running one. Its first value is the mean of the first batch. The state is updated
    before it is used; no gradient flows through it.
    """

    mean: Tensor
    started: Tensor

    def __init__(self, num_classes: int, momentum: float = 0.999) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.full((num_classes,), 1 / num_classes))
        self.register_buffer("started", torch.tensor(False))

    @torch.no_grad()
    def forward(self, probs: Tensor) -> Tensor:
        """Update the running mean with a batch of predictions (n, C), then align the batch; rows of the result sum to
        1."""
        probs = probs.to(self.mean.dtype)
        self._update(probs)
        aligned = probs * ((1 / len(self.mean) + EPSILON) / (self.mean + EPSILON))
        return aligned / aligned.sum(-1, keepdim=True)

    def _update(self, probs: Tensor) -> None:
        if len(probs) > 0:
            batch = probs.mean(0)
            self.mean.copy_(torch.where(self.started, self.mean.lerp(batch, 1 - self.momentum), batch))
            self.started.fill_(True)
