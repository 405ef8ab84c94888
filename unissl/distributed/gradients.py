"""What keeps the processes in step: the mean of their gradients, and now and then the state of the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unissl.distributed.group import current, talking


def average_gradients(module: nn.Module) -> None:
    """Replace every gradient by its mean over the processes; one exchange for all parameters that have any."""
    size = current().size
    if size == 1:
        return

    def mean(flat: Tensor) -> None:
        dist.all_reduce(flat)
        flat.div_(size)

    _in_one_piece((p.grad for p in module.parameters() if p.grad is not None), mean)


def take_over_state(*states: Mapping[str, Tensor]) -> None:
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
        with talking():
            exchange(flat)
        for tensor, part in zip(alike, torch.split(flat, [tensor.numel() for tensor in alike]), strict=True):
            tensor.copy_(part.view(tensor.shape))
