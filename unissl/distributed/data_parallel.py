"""A network whose batch is split over the processes.

Called with the global batch, it runs on the rows of this process and returns the outputs of all rows. Everything
computed from these is then the same on every process, and so is its gradient. That gradient, restricted to the local
rows and multiplied by the number of processes, goes back through the network; the mean over the processes
(:func:`unissl.distributed.collectives.average_gradients`) is then the gradient of the global batch. This holds for
parameters that were used on local rows and for those that were used on all rows. A network's classifier may be both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from unissl.distributed.batch_norm import over_rows
from unissl.distributed.group import current
from unissl.distributed.rows import all_gather_rows, is_split, local_slice
from unissl.types import Outputs


class DataParallelNet:
    """Splits the batch of a network's calls; every attribute is the network's."""

    def __init__(self, net: Callable[[Tensor], Outputs]) -> None:
        self.net = net

    def __call__(self, x: Tensor) -> Outputs:
        total = len(x)
        if not is_split(total):
            return self.net(x)
        with over_rows(total):
            out = self.net(x[local_slice(total)])
        logits, feat, *taps = gather_rows(total, out.logits, out.feat, *out.taps.values())
        return Outputs(logits, feat, dict(zip(out.taps, taps, strict=True)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.net, name)


def data_parallel(net: Callable[[Tensor], Outputs]) -> Callable[[Tensor], Outputs]:
    """The network as training calls it on several processes; on one, the network itself."""
    return DataParallelNet(net) if current().size > 1 else net


class GatherRows(torch.autograd.Function):
    """Local rows of several tensors in, all rows of each out."""

    @staticmethod
    def forward(ctx: Any, total: int, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.total = total
        ctx.set_materialize_grads(False)
        return tuple(all_gather_rows(parts, [total] * len(parts)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        size, rows = current().size, local_slice(ctx.total)
        return None, *(None if grad is None else size * grad[rows] for grad in grads)


gather_rows = cast(Callable[..., tuple[Tensor, ...]], GatherRows.apply)
