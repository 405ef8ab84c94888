"""Say how far a long preparation is: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PATIENCE = 2.0
"""Seconds that may pass in silence: what is done by then needs no bar."""
LINE_EVERY = 5.0


class Progress:
    """Counts finished images on stderr; shows nothing when the work takes less than two seconds."""

    def __init__(self, what: str, total: int, done: int = 0) -> None:
        self.what = what
        self.total = total
        self.done = self.first = done
        self._started = time.monotonic()
        self._last_line = self._started
        self._bar: tuple[RichProgress, TaskID] | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def advance(self, count: int = 1) -> None:
        self.done += count
        now = time.monotonic()
        if self._bar is not None:
            self._bar[0].update(self._bar[1], completed=self.done)
        elif sys.stderr is not None and sys.stderr.isatty():
            if now - self._started > PATIENCE:
                self._bar = self._open_bar()
        elif now - self._last_line > LINE_EVERY:
            self._last_line = now
            rate = (self.done - self.first) / (now - self._started)
            left = (self.total - self.done) / rate
            line = f"{self.what}: {self.done} of {self.total}, {rate:.{_digits(rate)}f} images/s, {left:.0f} s left"
            print(line, file=sys.stderr, flush=True)

    def _open_bar(self) -> tuple[RichProgress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
        from rich.text import Text

        class RateColumn(ProgressColumn):
            """Images per second, once some have been finished before its eyes."""

            def render(self, task: Task) -> Text:
                rate = task.finished_speed or task.speed
                return Text("" if rate is None else f"{rate:.{_digits(rate)}f} images/s")

        columns = (
            TextColumn("{task.description}"),
            *(BarColumn(), MofNCompleteColumn(), RateColumn(), TimeRemainingColumn()),
        )
        bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
        bar.start()
        return bar, bar.add_task(self.what, total=self.total, completed=self.done)


def _digits(rate: float) -> int:
    """Digits after the point: a slow rate needs one."""
    return 0 if rate >= 10 else 1
