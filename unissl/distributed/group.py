"""The processes of a run: who is who, how they come together and how they part.

A process that was not started together with others is :data:`ALONE` and never touches torch's distributed engine. Torch
is imported only where there is company, since ``unissl --help`` has to answer at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from unissl.distributed.rendezvous import agree_on_name
from unissl.errors import UserError

TIMEOUT = timedelta(days=1)
"""How long processes wait for one that builds a cache or writes a report. A dead one is noticed at once."""


@dataclass(frozen=True)
class World:
    """Number of this process and of all, in the whole group and on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    fixed_shards: int = 0
    """Shards that a batch is cut into whatever the number of processes; 0 for one per process."""

    @property
    def shards(self) -> int:
        """V, the stretches that the rows of a batch are cut into; each process has V / size of them."""
        return self.fixed_shards or self.size

    @property
    def is_main(self) -> bool:
        """Whether this is the one process that writes and speaks."""
        return self.rank == 0


ALONE = World()
_world = ALONE


class ProcessLost(UserError):
    """Another process of the group is gone."""

    def __init__(self) -> None:
        super().__init__(
            "Another process of this run has ended, so this one cannot go on; repeat the command with --resume auto, "
            "or let torchrun do so with --max-restarts."
        )


def current() -> World:
    return _world


@contextmanager
def fixed_shards(count: int) -> Iterator[None]:
    """Batches are cut into ``count`` shards in here, or with 0 into one for each process."""
    global _world
    if count % _world.size:
        raise UserError(
            f"machine.shards = {count} cannot be shared out evenly over {_world.size} processes; make it a multiple of "
            "their number, or start another number of processes."
        )
    before, _world = _world, replace(_world, fixed_shards=count)
    try:
        yield
    finally:
        _world = before


def launched() -> bool:
    """Whether torchrun, or something that sets the same variables, started this process as one of several."""
    needed = ("RANK", "MASTER_ADDR", "MASTER_PORT")
    return os.environ.get("WORLD_SIZE", "1") != "1" and all(name in os.environ for name in needed)


@contextmanager
def processes() -> Iterator[World]:
    """Work together with the other processes of the launch, if there are any.

    Only the first process prints. What goes wrong is told once, by the process in which it goes wrong first.
    """
    global _world
    if not launched():
        yield ALONE
        return
    store = _init_process_group()
    try:
        if _world.is_main:
            yield _world
        else:
            with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
                yield _world
    except Exception as error:
        if not _first_to_speak(store):
            sys.exit(getattr(error, "exit_code", 1))
        raise
    else:
        import torch.distributed as dist

        dist.destroy_process_group()
    finally:
        _world = ALONE


def _init_process_group() -> Any:
    """Join the group; returns the store that its processes have in common."""
    global _world
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    with comm_errors():
        place, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
        store = dist.PrefixStore(agree_on_name(place, rank, size, TIMEOUT), place)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    local = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", size))
    _world = World(rank, size, *local)
    return store


def _first_to_speak(store: Any) -> bool:
    try:
        return bool(store.add("unissl/told", 1) == 1)
    except RuntimeError:  # the process that held the store is gone: without torchrun the first, which has told
        return _world.is_main


@contextmanager
def comm_errors() -> Iterator[None]:
    """Around every exchange with other processes: what it raises means that one of them is gone."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessLost from error
