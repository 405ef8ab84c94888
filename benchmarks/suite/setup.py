"""How a benchmark is run: number of threads, full length or smoke test, preparation of the processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from suite.measure import MIN_ROUNDS, Report
from suite.worker import Task, Worker, take_turns
from unissl.utils.progress import Progress


@dataclass(frozen=True)
class Side:
    """A task and the process that it runs in."""

    task: Task
    threads: int | None
    prepare: Callable[[], None] | None


@dataclass(frozen=True)
class Setup:
    threads: int | None = None
    """CPU threads of whole steps; None: torch's default. Augmentation and GRI are measured on one."""
    quick: bool = False
    """Small cases only, as a smoke test; the numbers mean little."""
    prepare: Callable[[], None] | None = None
    """Set-up of a process that trains, applied to our side and not to the plain one."""

    @property
    def rounds(self) -> int:
        return MIN_ROUNDS if self.quick else MIN_ROUNDS + 2

    @property
    def min_seconds(self) -> float:
        """Shortest time that a side runs before the next one does."""
        return 0.02 if self.quick else 0.5

    def ours(self, task: Task, threads: int | None = None) -> Side:
        return Side(task, threads or self.threads, self.prepare)

    def plain(self, task: Task, threads: int | None = None) -> Side:
        return Side(task, threads or self.threads, None)

    def measure(
        self, title: str, sides: Mapping[str, Side], rounds: int | None = None, warm_up: int = 1
    ) -> dict[str, list[Report]]:
        """Let all sides take turns; returns a report per side and round."""
        rounds = rounds or self.rounds
        with ExitStack() as stack:
            bar = stack.enter_context(Progress(title, warm_up + rounds, unit="rounds"))
            workers = {
                name: stack.enter_context(Worker(side.task, threads=side.threads, prepare=side.prepare))
                for name, side in sides.items()
            }
            return take_turns(workers, rounds, warm_up, self.min_seconds, bar.advance)
