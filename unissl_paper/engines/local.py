"""A process per run on this machine, several at a time.

Not a pool of the standard library, which breaks when one worker is killed; here only its run fails. A new process for
each run also makes results independent of earlier runs. Where the system supports it, the process is forked from a
server that has only imported the package, which saves the seconds of the imports.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import cast

from unissl.utils import current_folder
from unissl_paper.grid.worker import Prepare, Report, Task, record_failure, work


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
                    running[worker.pipe] = worker
                for pipe in wait(list(running)):
                    report = _finish(running.pop(cast(Connection, pipe)))
                    stopped = stopped or report.stop
                    yield report
        finally:
            for worker in running.values():  # on SIGTERM a run writes a checkpoint
                worker.process.terminate()
            for worker in running.values():
                worker.process.join()


@dataclass(frozen=True)
class _Worker:
    task: Task
    process: BaseProcess
    pipe: Connection


def _context() -> BaseContext:
    """Never a plain fork, which breaks torch's threads."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unissl_paper.grid.worker", "unissl.plots.output"])
    return context


def _start(task: Task, prepare: Prepare, context: BaseContext) -> _Worker:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work_and_send, args=(task, prepare, sender), name=task.name)  # type: ignore[attr-defined]
    with _without_interrupts():
        current_folder.start(process)
    sender.close()  # so that the pipe ends with the process
    return _Worker(task, process, receiver)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C does not reach processes that are started inside, not even during their imports; here it waits."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing.resource_tracker import ensure_running

    with current_folder.elsewhere():
        ensure_running()  # would let the signal through again when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work_and_send(task: Task, prepare: Prepare, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine handles Ctrl-C
    current_folder.ignore_settings()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    pipe.send(work(task, prepare))


def _exit_with_parent() -> None:
    """A killed grid must not leave processes behind that hold the locks of their runs."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _finish(worker: _Worker) -> Report:
    try:
        report: Report = worker.pipe.recv()
    except EOFError:
        worker.process.join()
        reason = f"its process {_exit_text(worker.process.exitcode)}; repeat the command to resume"
        return record_failure(worker.task, reason)
    finally:
        worker.pipe.close()
    worker.process.join()
    return report


def _exit_text(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"was killed by {name}" + (" (perhaps out of memory)" if name == "SIGKILL" else "")
    return f"ended with code {code}"
