"""Worker processes that take turns: while one runs, every other is stopped, background threads included.

The allocator belongs to a process, so our path and plain PyTorch each need a process. A task is built inside its
process and runs one turn at a time, on command; the worker measures the time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from suite.measure import Report
from suite.usage import usage
from unissl.errors import UserError
from unissl.utils import current_folder
from unissl.utils.streams import steady_streams

PRELOADED = "suite.preload"
"""Imported once by the process that the workers are forked from."""
ROOT = str(Path(__file__).parents[1])
"""The folder that ``suite`` is imported from."""


class Finished(Exception):
    """Raised inside a task when no further turn is wanted."""


class Turn:
    """A task calls it when it is ready, and again after each turn; the call returns when the next turn begins.

    Short turns are taken several in a row, and the report has their means.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._begin(1)

    def __call__(self, **facts: float) -> None:
        now = time.perf_counter()
        self._done += 1
        self._sums.update(facts)
        if self._done < self._count:
            return
        means = {name: value / self._done for name, value in self._sums.items()}
        self._pipe.send(Report((now - self._start) / self._done, self._before, usage(), means, self._done))
        count = self._pipe.recv()
        if not count:
            raise Finished
        self._begin(count)

    def _begin(self, count: int) -> None:
        self._count, self._done = count, 0
        self._sums: Counter[str] = Counter()
        self._before = usage()
        self._start = time.perf_counter()


class Task(Protocol):
    """Something to measure. It is pickled for its worker, so it holds settings and builds the rest in ``run``."""

    def run(self, turn: Callable[..., None]) -> None: ...


def repeat(turn: Callable[..., None], call: Callable[[], object]) -> None:
    """The body of a task whose turn is one call of a function."""
    turn()
    while True:
        call()
        turn()


@steady_streams()
def _serve(pipe: Connection, task: Task, threads: int | None, prepare: Callable[[], None] | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C
    current_folder.ignore_settings()
    try:
        if prepare is not None:
            prepare()
        import torch

        if threads is not None:
            torch.set_num_threads(threads)
        task.run(Turn(pipe))
    except (Finished, EOFError, BrokenPipeError):
        pass
    except BaseException as error:
        reason = str(error) if isinstance(error, UserError) else traceback.format_exc()
        pipe.send((isinstance(error, UserError), reason))


class Worker:
    """A process with one task. ``prepare`` runs first in it, if there is one."""

    def __init__(self, task: Task, *, threads: int | None = None, prepare: Callable[[], None] | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([PRELOADED])
        if ROOT not in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # or the fork server cannot preload
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
        self._pipe, child_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_end, task, threads, prepare), daemon=True)
        current_folder.start(self._process)
        child_end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def wait_until_ready(self) -> Report:
        """Wait until the task is built, then stop the process."""
        return self._receive()

    def turn(self, count: int = 1) -> Report:
        """Let the task take one turn, or some in a row."""
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # the process has ended, which _receive reports
            self._pipe.send(count)
        return self._receive()

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        with suppress(OSError):  # the process may have ended
            self._pipe.send(0)
        self._process.join(timeout=2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()

    def _receive(self) -> Report:
        try:
            message = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise UserError(
                "A process of the benchmark ended without a message, most likely for lack of memory; "
                "free some, or use --quick."
            ) from None
        if isinstance(message, Report):
            self._signal(signal.SIGSTOP)
            return message
        is_user_error, reason = message
        raise UserError(reason) if is_user_error else RuntimeError(f"a process of the benchmark failed:\n{reason}")

    def _signal(self, number: signal.Signals) -> None:
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, number)


MAX_TURNS = 100


def take_turns(
    workers: Mapping[str, Worker],
    rounds: int,
    warm_up: int = 1,
    min_seconds: float = 0.0,
    after_round: Callable[[], None] = lambda: None,
) -> dict[str, list[Report]]:
    """Let every worker take a turn in each round; the order is reversed from round to round.

    The reports of the first ``warm_up`` rounds are dropped. A worker whose last warm-up turn took less than
    ``min_seconds`` takes several turns in a row from then on, so that a round lasts about as long.
    """
    reports: dict[str, list[Report]] = {name: [] for name in workers}
    for worker in workers.values():
        worker.wait_until_ready()
    counts = dict.fromkeys(workers, 1)
    for number in range(warm_up + rounds):
        for name in list(workers)[:: 1 if number % 2 == 0 else -1]:
            report = workers[name].turn(counts[name])
            if number >= warm_up:
                reports[name].append(report)
            elif number == warm_up - 1:
                counts[name] = turns_within(min_seconds, report.seconds)
        after_round()
    return reports


def turns_within(seconds: float, per_turn: float) -> int:
    """Number of turns that take about ``seconds``; at least one."""
    return min(MAX_TURNS, max(1, round(seconds / max(per_turn, 1e-9))))
