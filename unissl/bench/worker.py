"""Worker processes that take turns: while one runs, every other is stopped, threads in the background included.

The allocator is a property of a process, so our path and the plain way each need one of their own. A task is built
inside its process and then runs one turn at a time, on command; the worker itself takes the time.
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
from types import TracebackType
from typing import Protocol, Self

from unissl import current_folder
from unissl.bench.measure import Report
from unissl.bench.usage import usage
from unissl.errors import UserError
from unissl.streams import steady_streams

PRELOADED = "unissl.bench.preload"
"""Imported once by the process that the workers are forked from."""


class Finished(Exception):
    """Raised inside a task when no further turn is wanted."""


class Turn:
    """What a task calls when it is ready, and again after each turn. It returns when the next turn begins.

    Short turns are taken several in a row, and the report gives their means.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._begin(1)

    def __call__(self, **facts: float) -> None:
        now = time.perf_counter()
        self._done += 1
        self._sums.update(facts)
        if self._done < self._wanted:
            return
        means = {name: value / self._done for name, value in self._sums.items()}
        self._pipe.send(Report((now - self._start) / self._done, self._before, usage(), means, self._done))
        wanted = self._pipe.recv()
        if not wanted:
            raise Finished
        self._begin(wanted)

    def _begin(self, wanted: int) -> None:
        self._wanted, self._done = wanted, 0
        self._sums: Counter[str] = Counter()
        self._before = usage()
        self._start = time.perf_counter()


class Task(Protocol):
    """Something to measure. It is sent to its worker, so it holds settings only and builds all else in ``run``."""

    def run(self, turn: Callable[..., None]) -> None: ...


def repeat(turn: Callable[..., None], call: Callable[[], object]) -> None:
    """The body of a task whose turn is one call of a function."""
    turn()
    while True:
        call()
        turn()


@steady_streams()
def _serve(pipe: Connection, task: Task, threads: int | None, prepare: Callable[[], None] | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is answered by the process that asks for turns
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
    """A process with one task. ``prepare`` runs first in it; None leaves the process as Python starts it."""

    def __init__(self, task: Task, *, threads: int | None = None, prepare: Callable[[], None] | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([PRELOADED])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, task, threads, prepare), daemon=True)
        current_folder.start(self._process)
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def wait_until_ready(self) -> Report:
        """Wait for the task to be built, then hold it."""
        return self._receive()

    def turn(self, count: int = 1) -> Report:
        """Let the task take one turn, or some in a row."""
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # it is gone, as will be found when its answer is read
            self._pipe.send(count)
        return self._receive()

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        with suppress(OSError):  # it may be gone already
            self._pipe.send(0)
        self._process.join(timeout=2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()

    def _receive(self) -> Report:
        try:
            answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise UserError(
                "A process of the benchmark ended without a word, most likely for lack of memory; "
                "free some, or take --quick."
            ) from None
        if isinstance(answer, Report):
            self._signal(signal.SIGSTOP)
            return answer
        by_user, reason = answer
        raise UserError(reason) if by_user else RuntimeError(f"a process of the benchmark failed:\n{reason}")

    def _signal(self, number: signal.Signals) -> None:
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, number)


MOST_TURNS = 100
Progress = Callable[[int, Mapping[str, float]], None]
"""Told after each round: rounds so far, and the seconds that every worker took in the last one."""


def take_turns(
    workers: Mapping[str, Worker],
    rounds: int,
    warm_up: int = 1,
    least_seconds: float = 0.0,
    progress: Progress | None = None,
) -> dict[str, list[Report]]:
    """Let every worker take a turn in each round; the order is reversed from round to round.

    The reports of the first ``warm_up`` rounds are thrown away. A worker whose last one took less than
    ``least_seconds`` takes so many turns in a row from then on that a round lasts about as long.
    """
    reports: dict[str, list[Report]] = {name: [] for name in workers}
    for worker in workers.values():
        worker.wait_until_ready()
    counts, latest = dict.fromkeys(workers, 1), dict.fromkeys(workers, 0.0)
    for number in range(warm_up + rounds):
        for name in list(workers)[:: 1 if number % 2 == 0 else -1]:
            report = workers[name].turn(counts[name])
            latest[name] = report.seconds
            if number >= warm_up:
                reports[name].append(report)
            elif number == warm_up - 1:
                counts[name] = turns_within(least_seconds, report.seconds)
        if progress is not None:
            progress(number + 1, latest)
    return reports


def turns_within(seconds: float, per_turn: float) -> int:
    """How many turns last for about that long; at least one."""
    return min(MOST_TURNS, max(1, round(seconds / max(per_turn, 1e-9))))
