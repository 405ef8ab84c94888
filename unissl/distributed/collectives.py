"""Decisions that must be the same on all processes, made by one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from unissl.distributed.group import comm_errors, current
from unissl.errors import UserError

T = TypeVar("T")


def broadcast_from_main(make: Callable[[], T]) -> T:
    """What ``make`` gives on the first process, which alone calls it; a mistake of the user is raised on all."""
    world = current()
    if world.size == 1:
        return make()
    answer: list[Any] = [None, None]
    if world.is_main:
        try:
            answer[0] = make()
        except UserError as error:
            answer[1] = error
    with comm_errors():
        dist.broadcast_object_list(answer, src=0, device=torch.device("cpu"))
    if answer[1] is not None:
        raise answer[1]
    value: T = answer[0]
    return value


def local_main_process_first(make: Callable[[], T]) -> T:
    """``make`` on every process, on one of each machine before the others: what it builds in a cache, they find."""
    world = current()
    if world.local_rank == 0:
        made = make()
    all_reduce_max(0)
    return made if world.local_rank == 0 else make()


def all_reduce_max(value: int) -> int:
    """The largest of the numbers that the processes have."""
    if current().size == 1:
        return value
    found = torch.tensor(value)
    with comm_errors():
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found)
