"""What must be the same on all processes: values that one of them computes, averaged gradients, and states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unissl.distributed.group import comm_errors, current
from unissl.distributed.rows import as_bytes
from unissl.errors import UserError

T = TypeVar("T")


def broadcast_from_main(compute: Callable[[], T]) -> T:
    """Call ``compute`` on the main process alone and return its result on all; a UserError is raised on all."""
    world = current()
    if world.size == 1:
        return compute()
    message: list[Any] = [None, None]  # result, error
    if world.is_main:
        try:
            message[0] = compute()
        except UserError as error:
            message[1] = error
    with comm_errors():
        dist.broadcast_object_list(message, src=0, device=torch.device("cpu"))
    if message[1] is not None:
        raise message[1]
    result: T = message[0]
    return result


def local_main_process_first(compute: Callable[[], T]) -> T:
    """Call ``compute`` on every process, but first on one of each machine: the others find what it put in a cache."""
    is_local_main = current().local_rank == 0
    if is_local_main:
        result = compute()
    all_reduce_max(0)
    return result if is_local_main else compute()


def all_reduce_max(value: int) -> int:
    """The largest ``value`` of all processes."""
    if current().size == 1:
        return value
    largest = torch.tensor(value)
    with comm_errors():
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest)


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
