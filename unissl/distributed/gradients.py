"""What keeps the processes in step: the sum of their gradients, and now and then the state of the first.

Without a fixed number of shards, the mean of what the processes have is exchanged once after the backward pass. With
it, gradients are added up on the way, shard by shard in a fixed order, and are complete when they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unissl.distributed.group import comm_errors, current
from unissl.distributed.rows import gather


def average_gradients(module: nn.Module) -> None:
    """Replace every gradient by its mean over the processes; one exchange for all parameters that have any.

    With a fixed number of shards there is nothing to do: every process has the gradient of the global batch.
    """
    size = current().size
    if size == 1 or current().fixed_shards:
        return

    def mean(flat: Tensor) -> None:
        dist.all_reduce(flat)
        flat.div_(size)

    _in_one_piece((p.grad for p in module.parameters() if p.grad is not None), mean)


class _Copies(torch.autograd.Function):
    """Parameters p_1 .. p_m in; p_1 k times, p_2 k times, ... out, for the k shards of this process.

    Backwards the gradient of each is the sum over all V shards, in their order whatever process they are on.
    """

    @staticmethod
    def forward(ctx: Any, count: int, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.count, ctx.dtypes = count, [parameter.dtype for parameter in parameters]
        ctx.set_materialize_grads(False)
        return tuple(parameter.detach() for parameter in parameters for _ in range(count))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        # Parameters that no loss reaches have no gradient, and so it is on all shards.
        by_shard = [[grad for grad in grads[i :: ctx.count] if grad is not None] for i in range(ctx.count)]
        own = torch.stack([torch.cat([grad.reshape(-1) for grad in shard]) for shard in by_shard])
        summed = iter(torch.split(gather(own).sum(0), [grad.numel() for grad in by_shard[0]]))
        pairs = zip(grads[:: ctx.count], ctx.dtypes, strict=True)
        return (None, *(None if grad is None else next(summed).view(grad.shape).to(dtype) for grad, dtype in pairs))


def copies(count: int, parameters: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    """``count`` copies of each parameter, one for each shard of this process."""
    made = cast(tuple[Tensor, ...], _Copies.apply(count, *parameters))  # type: ignore[no-untyped-call]
    return [made[i : i + count] for i in range(0, len(made), count)]


def broadcast_state(*states: Mapping[str, Tensor]) -> None:
    """Copy tensors from the first process to all others.

    Processes on equal machines compute equal numbers and this changes nothing. On unequal ones it keeps differences in
    the last digits from growing.
    """
    if current().size > 1:
        _in_one_piece((tensor for state in states for tensor in state.values()), lambda flat: dist.broadcast(flat, 0))


@torch.no_grad()
def _in_one_piece(tensors: Iterable[Tensor], exchange: Callable[[Tensor], object]) -> None:
    """Let ``exchange`` change all tensors in place, those of one kind laid end to end."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for alike in kinds.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        with comm_errors():
            exchange(flat)
        for tensor, part in zip(alike, torch.split(flat, [tensor.numel() for tensor in alike]), strict=True):
            tensor.copy_(part.view(tensor.shape))
