"""A network whose batch is shared out over the processes.

Called with the global batch, it runs its own rows and returns the outputs of all. Whatever is computed from these is
then the same on every process, and so is its gradient. That gradient, cut to the own rows and multiplied by the number
of processes, goes back through the network; the mean over the processes
(:func:`unissl.distributed.gradients.average_gradients`) is then the gradient of the global batch, for parameters
that were used on some rows and for those that were used on all of them alike. A network's classifier may be both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from unissl.distributed.batch_norm import over_rows
from unissl.distributed.group import current
from unissl.distributed.rows import mine, put_together, shared_out
from unissl.types import Outputs


class SpreadNet:
    """A network that is called in another way; everything else about it is its own."""

    def __init__(self, net: Callable[[Tensor], Outputs]) -> None:
        self.net = net

    def __call__(self, x: Tensor) -> Outputs:
        total = len(x)
        if not shared_out(total):
            return self.net(x)
        with over_rows(total):
            out = self.net(x[mine(total)])
        names = list(out.taps)
        logits, feat, *taps = put_rows_together(total, out.logits, out.feat, *(out.taps[name] for name in names))
        return Outputs(logits, feat, dict(zip(names, taps, strict=True)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.net, name)


def spread(net: Callable[[Tensor], Outputs]) -> Callable[[Tensor], Outputs]:
    """The network as a training loop on several processes calls it; on one, the network itself."""
    return SpreadNet(net) if current().size > 1 else net


class PutTogether(torch.autograd.Function):
    """Own rows of several tensors in, all rows out."""

    @staticmethod
    def forward(ctx: Any, total: int, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.total = total
        ctx.set_materialize_grads(False)
        return tuple(put_together(parts, [total] * len(parts)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        own, size = mine(ctx.total), current().size
        return (None, *(None if grad is None else size * grad[own] for grad in grads))


put_rows_together = cast(Callable[..., tuple[Tensor, ...]], PutTogether.apply)
