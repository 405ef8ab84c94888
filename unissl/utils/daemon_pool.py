"""Threads for work in C libraries that cannot be interrupted, such as decoding an image.

The threads of ``concurrent.futures`` are waited for when a command stops and again when Python ends, so one image that
takes minutes would outlast the signal that asks the command to stop. Nobody waits for these.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Self, TypeVar

Result = TypeVar("Result")
Task = tuple[Future[Any], Callable[[], Any]]


class DaemonPool:
    """Like ``ThreadPoolExecutor``, except that leaving it drops the tasks that have not begun and waits for nothing."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()

    def __enter__(self) -> Self:
        for _ in range(self._threads):
            Thread(target=_work, args=(self._tasks,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(Empty):
            while task := self._tasks.get_nowait():
                task[0].cancel()
        for _ in range(self._threads):
            self._tasks.put(None)

    def submit(self, call: Callable[..., Result], *arguments: Any) -> Future[Result]:
        future: Future[Result] = Future()
        self._tasks.put((future, lambda: call(*arguments)))
        return future


def _work(tasks: SimpleQueue[Task | None]) -> None:
    while (task := tasks.get()) is not None:
        future, call = task
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        del future, call, task  # a thread that waits holds no images
