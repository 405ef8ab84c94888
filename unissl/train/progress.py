"""What a person sees while training: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


class TrainingProgress:
    """Rate, time left, losses and the share of pseudo-labels in use."""

    def __init__(self, title: str, total: int, done: int = 0, quiet: bool = False) -> None:
        self.title, self.total, self.first, self.done = title, total, done, done
        self.started = self.last_line = time.monotonic()
        self.quiet = quiet
        self.console = Console(stderr=True)
        self.bar: Progress | None = None
        self.task = TaskID(0)
        if self.console.is_terminal and not quiet:
            self.bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[values]}"),
                console=self.console,
            )

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task(self.title, total=self.total, completed=self.done, rate="", values="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()

    @property
    def rate(self) -> float:
        """Steps per second since this process began."""
        return (self.done - self.first) / max(time.monotonic() - self.started, 1e-9)

    def advance(self, done: int, values: Mapping[str, float] | None = None) -> None:
        self.done = done
        shown = "" if values is None else " ".join(f"{name} {value:.3f}" for name, value in values.items())
        if self.bar is not None:
            self.bar.update(self.task, completed=done, rate=f"{self.rate:.1f}/s")
            if shown:
                self.bar.update(self.task, values=shown)
        elif not self.quiet and shown and time.monotonic() - self.last_line >= SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            left = (self.total - done) / max(self.rate, 1e-9)
            self.say(f"{self.title}: step {done}/{self.total}, {self.rate:.1f}/s, {left:.0f} s left, {shown}")

    def say(self, message: str) -> None:
        """A line that stays."""
        if self.quiet:
            return
        if self.bar is not None:
            self.bar.console.print(message, highlight=False, markup=False)
        else:
            print(message, file=sys.stderr, flush=True)
