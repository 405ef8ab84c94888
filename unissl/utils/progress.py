"""Progress of long work: a bar in a terminal, an updating line in a notebook, a log line now and then elsewhere.

Messages go to the standard logger ``unissl``: INFO for progress and messages, WARNING for warnings. The command line
prints them on stderr (:func:`log_to_stderr`); a program that uses the package configures ``logging`` as it likes.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self, TypeVar

from unissl.errors import visible

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

T = TypeVar("T")

log = logging.getLogger("unissl")
"""The package's logger."""
BAR_AFTER = 2.0
"""Seconds of work before a bar opens; shorter work shows none."""
LINE_EVERY = 10.0
"""Seconds between two lines in a log."""
REDRAW_EVERY = 0.5
"""Seconds between two updates of the line in a notebook."""

_min_level: ContextVar[int] = ContextVar("min_level", default=logging.NOTSET)
_repeats: ContextVar[float] = ContextVar("repeats", default=0.0)


@contextmanager
def _within(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def silenced(below: int = logging.WARNING) -> AbstractContextManager[None]:
    """Show no progress, and drop the package's messages below the level ``below``."""
    return _within(_min_level, max(below, _min_level.get()))


def followed_by(repeats: float) -> AbstractContextManager[None]:
    """Count later work in the time left: ``repeats`` times the duration of the work whose progress is shown inside, in
    addition to what an outer context counts."""
    return _within(_repeats, _repeats.get() + repeats)


class _StderrHandler(logging.Handler):
    """Writes to the stderr of the moment, which a bar, a notebook or a test may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        print(prefix + visible(record.getMessage(), keep="\n\t"), file=sys.stderr, flush=True)


def log_to_stderr() -> None:
    """Print the package's messages on stderr as plain text; warnings begin with ``warning:``."""
    if not any(isinstance(handler, _StderrHandler) for handler in log.handlers):
        log.addHandler(_StderrHandler())
        log.setLevel(logging.INFO)


log.addFilter(lambda record: record.levelno >= _min_level.get())


class Progress:
    """Counts from ``done`` to ``total`` and shows the rate and the time left; use it as a context."""

    def __init__(self, title: str, total: int, done: int = 0, unit: str = "images") -> None:
        self.title, self.total, self.done, self.unit = title, total, done, unit
        self._first, self._started = done, time.monotonic()
        self._values: dict[str, str] = {}
        self._display = _display(self._started)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._display.close()

    def advance(self, count: int = 1, values: Mapping[str, str] | None = None) -> None:
        """Count ``count`` more as done; ``values`` (name to formatted value) are shown from then on."""
        self.done += count
        self._values.update(values or {})
        self._display.show(self, time.monotonic())

    def facts(self, now: float) -> list[str]:
        """Rate, time left (also of the work that :func:`followed_by` adds) and values, as text."""
        rate = (self.done - self._first) / max(now - self._started, 1e-9)
        per_unit = (now - self._started) / max(self.done - self._first, 1)
        left = format_seconds(per_unit * (self.total - self.done + _repeats.get() * self.total))
        values = [f"{name} {value}" for name, value in self._values.items()]
        return [f"{rate:.{0 if rate >= 10 else 1}f} {self.unit}/s", f"{left} left", *values]

    def line(self, now: float) -> str:
        return f"{self.title}: {self.done} of {self.total} {self.unit}, {', '.join(self.facts(now))}"


class _Silent:
    """Shows nothing."""

    def __init__(self, started: float) -> None:
        self.started = self.last_shown = started

    def show(self, progress: Progress, now: float) -> None:
        pass

    def close(self) -> None:
        pass


class _LogLines(_Silent):
    """A line in the log now and then."""

    def show(self, progress: Progress, now: float) -> None:
        if now - self.last_shown >= LINE_EVERY:
            self.last_shown = now
            log.info("%s", progress.line(now))


class _NotebookLine(_Silent):
    """A line in the output of a notebook's cell that replaces the one before. (Rich needs ipywidgets for that.)"""

    handle: Any = None

    def show(self, progress: Progress, now: float) -> None:
        due = now - self.last_shown >= REDRAW_EVERY or progress.done == progress.total
        if now - self.started < BAR_AFTER or not due:
            return
        from IPython.display import display

        self.last_shown, text = now, {"text/plain": progress.line(now)}
        if self.handle is None:
            self.handle = display(text, raw=True, display_id=True)
        else:
            self.handle.update(text, raw=True)


class _TerminalBar(_Silent):
    """A bar that disappears at the end; messages that are logged meanwhile stay above it."""

    bar: tuple[RichProgress, TaskID] | None = None

    def show(self, progress: Progress, now: float) -> None:
        if self.bar is None and now - self.started >= BAR_AFTER:
            self.bar = self.open(progress)
        if self.bar is not None:
            bar, task = self.bar
            bar.update(task, completed=progress.done, facts="  ".join(progress.facts(now)))

    def open(self, progress: Progress) -> tuple[RichProgress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        facts = TextColumn("{task.fields[facts]}", markup=False)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), facts)
        bar = RichProgress(*columns, console=Console(stderr=True, markup=False, emoji=False), transient=True)
        bar.start()
        return bar, bar.add_task(progress.title, total=progress.total, completed=progress.done, facts="")

    def close(self) -> None:
        if self.bar is not None:
            self.bar[0].stop()


def _display(started: float) -> _Silent:
    """How progress is shown in this process."""
    if _min_level.get() > logging.INFO:
        return _Silent(started)
    if in_notebook():
        return _NotebookLine(started)
    return _TerminalBar(started) if sys.stderr.isatty() else _LogLines(started)


def in_notebook() -> bool:
    """Whether this process is the kernel of a Jupyter notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


def format_seconds(seconds: float) -> str:
    """``45 s``, ``12 min``, ``1 h 05 min``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
