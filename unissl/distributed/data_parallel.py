"""A network whose batch is shared out over the processes.

Called with the global batch, it runs its own rows and returns the outputs of all. Whatever is computed from these is
then the same on every process, and so is its gradient. That gradient, cut to the own rows and multiplied by the number
of processes, goes back through the network; the mean over the processes
(:func:`unissl.distributed.gradients.average_gradients`) is then the gradient of the global batch, for parameters
that were used on some rows and for those that were used on all of them alike. A network's classifier may be both.

With a fixed number of shards the network computes shard by shard (:mod:`unissl.distributed.shards`). Gradients of its
parameters are then added up over all shards on their way back, and nothing is multiplied or averaged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from unissl.distributed.batch_norm import over_rows
from unissl.distributed.group import current
from unissl.distributed.rows import all_gather_rows, cat, local_slice, shard_slices, shared_out
from unissl.distributed.shards import by_shard, pieces_of
from unissl.types import Outputs


class DataParallelNet:
    """A network that is called in another way; everything else about it is its own."""

    def __init__(self, net: Callable[[Tensor], Outputs]) -> None:
        self.net = net

    def __call__(self, x: Tensor) -> Outputs:
        total = len(x)
        if not shared_out(total):
            return self.net(x)
        with over_rows(total):
            if current().fixed_shards:
                out = by_shard(self.net, [x[rows] for rows in shard_slices(total)])
            else:
                out = self.net(x[local_slice(total)])
        names = list(out.taps)
        parts = [out.logits, out.feat, *(out.taps[name] for name in names)]
        logits, feat, *taps = gather_rows(total, *(piece for part in parts for piece in pieces_of(part)))
        return Outputs(logits, feat, dict(zip(names, taps, strict=True)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.net, name)


def data_parallel(net: Callable[[Tensor], Outputs]) -> Callable[[Tensor], Outputs]:
    """The network as a training loop calls it on several processes or shards; on one, the network itself."""
    return DataParallelNet(net) if current().shards > 1 else net


class GatherRows(torch.autograd.Function):
    """Own shards of several tensors in, first all of the first tensor; all rows of each tensor out."""

    @staticmethod
    def forward(ctx: Any, total: int, *pieces: Tensor) -> tuple[Tensor, ...]:
        ctx.total = total
        ctx.set_materialize_grads(False)
        count = len(shard_slices(total))
        parts = [cat(pieces[i : i + count]) for i in range(0, len(pieces), count)]
        return tuple(all_gather_rows(parts, [total] * len(parts)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        world = current()
        times = 1 if world.fixed_shards else world.size
        return (
            None,
            *(None if grad is None else times * grad[own] for grad in grads for own in shard_slices(ctx.total)),
        )


gather_rows = cast(Callable[..., tuple[Tensor, ...]], GatherRows.apply)
