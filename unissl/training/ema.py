"""The averaged parameters, which are evaluated and shipped: theta' <- theta' + w (theta - theta'), started at theta_0.

With a constant w = 1 - m this is an exponential moving average (EMA) that looks back 1 / w steps. In the tail of a
training, if there is one, w falls as one over the number of its steps. The average is then over the whole tail, and the
last evaluation depends less on the last steps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

RUNNING_STATS = ("running_mean", "running_var")


class Ema:
    """A shadow of a module's parameters by name. Decay 0 follows the live parameters until the tail.

    The protocol averages parameters and evaluates them with the live BatchNorm statistics. Those of the last steps do
    not fit to an average over a long tail, so with ``tail`` the statistics are in the shadow as well: live until the
    tail starts, then averaged as the parameters are.
    """

    def __init__(self, module: nn.Module, decay: float, *, tail: bool = False) -> None:
        self.decay = decay
        self.num_parameters = len(list(module.parameters()))
        self.tail = tail
        self.shadow: dict[str, Tensor] = {name: live.clone() for name, live in self._live(module).items()}

    @torch.no_grad()
    def update(self, module: nn.Module, tail_step: int = 0) -> None:
        """Move the shadow; ``tail_step`` is the number of the step in the tail, from 1 on, and 0 before it."""
        weight = 1 - self.decay
        if tail_step:
            weight = 1 / (tail_step + 1 / weight)
        shadow, live, count = list(self.shadow.values()), list(self._live(module).values()), self.num_parameters
        torch._foreach_lerp_(shadow[:count], live[:count], weight)
        if len(shadow) > count:  # running statistics
            torch._foreach_lerp_(shadow[count:], live[count:], weight if tail_step else 1.0)

    def _live(self, module: nn.Module) -> dict[str, Tensor]:
        live = {name: parameter.detach() for name, parameter in module.named_parameters()}
        if self.tail:
            live |= {name: b for name, b in module.named_buffers() if name.rpartition(".")[2] in RUNNING_STATS}
        return live
