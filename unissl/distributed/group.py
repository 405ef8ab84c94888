"""The processes of a run: ranks, joining the group, leaving it.

A process that was not started together with others is :data:`ALONE` and never uses torch's distributed engine. Torch
is imported only when there are several processes, since ``unissl --help`` must be fast.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from unissl.errors import UserError, shortened
from unissl.utils.daemon_pool import DaemonPool

TIMEOUT = timedelta(days=1)
"""How long processes wait for one that builds a cache or writes a report. A dead one is noticed at once."""
POLL_SECONDS = 0.02
"""Seconds between two reads of the store."""
PEER_LOST = ("connect", "by peer", "timed out", "timeout", "broken pipe", "socket", "remote process", "aborted")
"""Words in errors of gloo, NCCL and the store that mean that another process is gone. The class of the error does not
tell: gloo raises a plain RuntimeError for everything."""


@dataclass(frozen=True)
class World:
    """Rank of this process and number of processes, in the whole group and on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the one process that writes files and prints."""
        return self.rank == 0


ALONE = World()
_world = ALONE


class ProcessLost(UserError):
    """Another process of the group is gone."""

    def __init__(self, cause: BaseException) -> None:
        reason = shortened(" ".join(str(cause).split()), 150)
        super().__init__(
            f"Another process of this run has ended ({reason}), so this one cannot go on; repeat the command with "
            "--resume auto, or let torchrun do so with --max-restarts."
        )


def current() -> World:
    """The group that this process belongs to."""
    return _world


def launched() -> bool:
    """Whether torchrun, or a launcher that sets the same variables, started this process as one of several."""
    needed = ("RANK", "MASTER_ADDR", "MASTER_PORT")
    return os.environ.get("WORLD_SIZE", "1") != "1" and all(name in os.environ for name in needed)


@contextmanager
def processes() -> Iterator[World]:
    """Join the group of the launch, if there is one.

    Only the main process prints. An error is printed once, by the process that raises first.
    """
    global _world
    if not launched():
        yield ALONE
        return
    store, failed = _init_process_group(), True
    try:
        if _world.is_main:
            yield _world
        else:
            with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
                yield _world
        failed = False
    except Exception as error:
        if not _is_first_error(store):
            sys.exit(getattr(error, "exit_code", 1))
        raise
    finally:
        _world = ALONE
        _leave_process_group(failed)


def _init_process_group() -> Any:
    """Join the group; returns the store that its processes share."""
    global _world
    import torch
    import torch.distributed as dist
    import torch.distributed.nn.functional  # its default arguments would keep a group that exists already
    from torch.distributed.rendezvous import rendezvous

    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        if not os.environ[name].isdecimal():
            raise UserError(f"${name} is {shortened(os.environ[name])!r}, and torchrun sets a number; unset it.")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    with comm_errors():
        with DaemonPool(1) as pool:  # torch waits for the others deaf to signals
            shared, rank, size = pool.submit(lambda: next(rendezvous("env://", timeout=TIMEOUT))).result()
        store = dist.PrefixStore(agree_on_name(shared, rank, size, TIMEOUT), shared)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    local = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", size))
    _world = World(rank, size, *local)
    return store


def agree_on_name(store: Any, rank: int, size: int, timeout: timedelta) -> str:
    """A name that all processes of this start, and no others, get.

    Torchrun keeps one store over all its restarts. Entries of an earlier start, such as addresses on which nobody
    listens any more, must not be taken for entries of this one. The main process chooses a random name; every other
    process acknowledges it with a random token; the main process then publishes all tokens. A process that finds its
    own token among them knows that the name belongs to this start.
    """
    token, deadline = uuid.uuid4().hex, time.monotonic() + timeout.total_seconds()
    if rank == 0:
        store.set("unissl/name", token)
    while time.monotonic() < deadline:
        name = token if rank == 0 else _read(store, "unissl/name")
        if name is not None and (_invite(store, name, size) if rank == 0 else _accept(store, name, rank, token)):
            return name
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"not all of the {size} processes arrived within {timeout.total_seconds():.0f} s")


def _invite(store: Any, name: str, size: int) -> bool:
    """Publish the tokens of the processes that read the name; returns whether all of them have found theirs."""
    tokens = [_read(store, f"unissl/{name}/seen/{rank}") for rank in range(1, size)]
    if None in tokens:
        return False
    store.set(f"unissl/{name}/all", " ".join(str(token) for token in tokens))
    return all(_read(store, f"unissl/{name}/found/{rank + 1}") == token for rank, token in enumerate(tokens))


def _accept(store: Any, name: str, rank: int, token: str) -> bool:
    """Acknowledge the name; returns whether the main process has published the token."""
    store.set(f"unissl/{name}/seen/{rank}", token)
    if token not in (_read(store, f"unissl/{name}/all") or "").split():
        return False
    store.set(f"unissl/{name}/found/{rank}", token)
    return True


def _read(store: Any, key: str) -> str | None:
    return store.get(key).decode() if store.check([key]) else None


def _leave_process_group(failed: bool) -> None:
    """End the threads of the group. Those that are left when Python ends may take its lock then, which aborts the
    process (SIGABRT, "terminate called without an active exception") and loses the exit code.

    No exchange is under way in gloo, whose errors and results are waited for. After an error NCCL might wait for the
    other processes.
    """
    import torch
    import torch.distributed as dist

    if not (failed and torch.cuda.is_available()):
        dist.destroy_process_group()


def _is_first_error(store: Any) -> bool:
    try:
        return bool(store.add("unissl/errors", 1) == 1)
    except RuntimeError:  # the process with the store is gone: without torchrun the main one, which has printed
        return _world.is_main


@contextmanager
def comm_errors() -> Iterator[None]:
    """Around every exchange with other processes: raises :class:`ProcessLost` if one of them is gone."""
    try:
        yield
    except (RuntimeError, TimeoutError) as error:
        if not any(words in str(error).lower() for words in PEER_LOST) and not isinstance(error, TimeoutError):
            raise
        raise ProcessLost(error) from error
