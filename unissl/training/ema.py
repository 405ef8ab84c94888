"""Exponential moving average of parameters: theta' <- m theta' + (1 - m) theta, started at theta_0."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Ema:
    """A shadow of a module's parameters by name. Buffers are not averaged. Decay 0 follows the live parameters."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.shadow: dict[str, Tensor] = {name: p.detach().clone() for name, p in module.named_parameters()}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        live = [p.detach() for _, p in module.named_parameters()]
        torch._foreach_lerp_(list(self.shadow.values()), live, 1 - self.decay)
