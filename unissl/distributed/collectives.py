"""Values that must be the same on all processes, computed by one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from unissl.distributed.group import comm_errors, current
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
