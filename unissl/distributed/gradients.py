"""Keep the processes in step: average their gradients, and now and then copy the state of the main process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unissl.distributed.group import comm_errors, current
from unissl.distributed.rows import as_bytes


def average_gradients(module: nn.Module) -> None:
    """Replace every gradient by its mean over the processes, in one exchange for all parameters that have one."""
    size = current().size
    if size == 1:
        return

    def mean(flat: Tensor) -> None:
        dist.all_reduce(flat)
        flat.div_(size)

    _flattened((p.grad for p in module.parameters() if p.grad is not None), mean)


def broadcast_state(*states: Mapping[str, Tensor]) -> None:
    """Copy tensors from the main process to all others.

    Processes on equal machines compute equal numbers and this changes nothing. On unequal ones it keeps differences in
    the last digits from growing.
    """
    if current().size > 1:
        tensors = (tensor for state in states for tensor in state.values())
        _flattened(tensors, lambda flat: dist.broadcast(as_bytes(flat[None]), 0))


@torch.no_grad()
def _flattened(tensors: Iterable[Tensor], exchange: Callable[[Tensor], object]) -> None:
    """Let ``exchange`` change all tensors in place, those of one dtype and device as one flat tensor."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for group in groups.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        with comm_errors():
            exchange(flat)
        for tensor, part in zip(group, torch.split(flat, [tensor.numel() for tensor in group]), strict=True):
            tensor.copy_(part.view(tensor.shape))
