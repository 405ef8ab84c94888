"""Functions run on several processes that form a group, as torchrun makes them, for tests that need a few of these.

The processes are forked from a server that has torch in memory already: starting four of them takes half a second.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.connection import Connection
from typing import Any

import torch

from unissl.distributed.group import processes

SECONDS = 300
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "unissl.run.pipeline"])


def on_processes(size: int, function: Callable[..., Any], *arguments: Any, join: bool = True) -> list[Any]:
    """What ``function`` returns on each of ``size`` processes, the first one's first; its errors are raised here.

    Without ``join`` the processes are only told of each other, and ``function`` brings them together itself.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pipes, started = [], []
    for rank in range(size):
        receiver, sender = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_work, args=(rank, size, port, join, sender, function, arguments))
        process.start()
        sender.close()
        pipes.append(receiver)
        started.append(process)
    try:
        return [_answer(pipe) for pipe in pipes]
    finally:
        for pipe, process in zip(pipes, started, strict=True):
            pipe.close()
            process.join(10)
            process.kill()
            process.join()
            process.close()


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(SECONDS):
        raise TimeoutError(f"no answer from a process within {SECONDS} s")
    value, error = pickle.loads(pipe.recv_bytes())
    if error is not None:
        raise AssertionError(error)
    return value


def _work(
    rank: int,
    size: int,
    port: int,
    join: bool,
    pipe: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    here = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in here.items()})
    torch.set_num_threads(1)
    value, error = None, None
    try:
        with processes() if join else nullcontext():
            value = function(*arguments)
    except BaseException:
        error = f"on process {rank}: {traceback.format_exc()}"
    pipe.send_bytes(pickle.dumps((value, error)))  # torch would send tensors by shared memory, which dies with us
