"""Threads for work in C libraries that cannot be interrupted, such as decoding an image.

The threads of ``concurrent.futures`` are waited for when a command stops and again when Python ends, so one image that
takes minutes would outlast the signal that asks the command to stop. Nobody waits for these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, Self, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class DaemonPool:
    """Like ``ThreadPoolExecutor``, except that leaving it drops the tasks that have not begun and waits for nothing."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._futures: set[Future[Any]] = set()

    def __enter__(self) -> Self:
        for _ in range(self._threads):
            Thread(target=_work, args=(self._tasks,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        for future in tuple(self._futures):
            future.cancel()
        for _ in range(self._threads):
            self._tasks.put(None)

    def submit(self, call: Callable[..., Result], *arguments: Any) -> Future[Result]:
        future: Future[Result] = Future()
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        self._tasks.put((future, lambda: call(*arguments)))
        return future

    def map(self, call: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results in the order of the items."""
        for future in [self.submit(call, item) for item in items]:
            yield future.result()


def _work(tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (task := tasks.get()) is not None:
        future, call = task
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        del future, call, task  # a thread that waits holds no images
