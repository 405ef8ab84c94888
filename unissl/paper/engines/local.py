"""A process per run on this machine, some at a time.

Not a pool of the standard library: there one worker that is killed takes all others with it, while here it costs its
run only. A fresh process for each run also makes results independent of what ran before. Where the system can, it is
forked from a server that has imported everything and done nothing else, which saves the seconds of the imports.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import cast

from unissl import current_folder
from unissl.paper.work import Prepare, Report, Task, record_failure, work


@dataclass(frozen=True)
class LocalEngine:
    jobs: int
    prepare: Prepare

    def run(self, tasks: Sequence[Task]) -> Iterator[Report]:
        waiting, stopped, context = deque(tasks), False, _context()
        running: dict[Connection, _Worker] = {}
        try:
            while running or (waiting and not stopped):
                while waiting and len(running) < self.jobs and not stopped:
                    worker = _start(waiting.popleft(), self.prepare, context)
                    running[worker.answer] = worker
                for answer in wait(list(running)):
                    report = _end(running.pop(cast(Connection, answer)))
                    stopped = stopped or report.stop
                    yield report
        finally:
            for worker in running.values():  # asked to stop, they write a checkpoint
                worker.process.terminate()
            for worker in running.values():
                worker.process.join()


@dataclass(frozen=True)
class _Worker:
    task: Task
    process: BaseProcess
    answer: Connection


def _context() -> BaseContext:
    """Never a plain fork, which torch's threads do not survive."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unissl.paper.work", "unissl.report.plots"])
    return context


def _start(task: Task, prepare: Prepare, context: BaseContext) -> _Worker:
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work_and_answer, args=(task, prepare, there), name=task.name)  # type: ignore[attr-defined]
    current_folder.start(process)
    there.close()  # so that the end of the process is the end of the pipe
    return _Worker(task, process, here)


def _work_and_answer(task: Task, prepare: Prepare, answer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's to pass on
    current_folder.ignore_settings()
    threading.Thread(target=_die_with_parent, daemon=True).start()
    answer.send(work(task, prepare))


def _die_with_parent() -> None:
    """A grid that is killed must not leave runs behind that the next one would meet."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _end(worker: _Worker) -> Report:
    try:
        report: Report = worker.answer.recv()
    except EOFError:
        worker.process.join()
        return record_failure(worker.task, f"its process {_how(worker.process.exitcode)}; repeat the command to go on")
    finally:
        worker.answer.close()
    worker.process.join()
    return report


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"was killed by {name}" + (" (perhaps for want of memory)" if name == "SIGKILL" else "")
    return f"ended with code {code}"
