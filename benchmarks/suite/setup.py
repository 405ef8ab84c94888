"""How a benchmark is run: on how many threads, at full length or just to see that it works, with which preparation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from unissl.bench.measure import MIN_ROUNDS, Report
from unissl.bench.worker import Task, Worker, take_turns
from unissl.training.progress import TrainingProgress


@dataclass(frozen=True)
class Side:
    """A task and the kind of process it runs in."""

    task: Task
    threads: int | None
    prepare: Callable[[], None] | None


@dataclass(frozen=True)
class Setup:
    threads: int | None = None
    """CPU threads of whole steps; None: what torch finds. Augmentation and GRI are measured on one."""
    quick: bool = False
    """Small cases only, to see that all works; the numbers mean little."""
    prepare: Callable[[], None] | None = None
    """What the command does to a process before it trains; it is done to our side and not to the plain one."""
    quiet: bool = False

    @property
    def rounds(self) -> int:
        return MIN_ROUNDS if self.quick else MIN_ROUNDS + 2

    @property
    def least_seconds(self) -> float:
        """How long a side runs before the next one does."""
        return 0.02 if self.quick else 0.5

    def ours(self, task: Task, threads: int | None = None) -> Side:
        return Side(task, threads or self.threads, self.prepare)

    def plain(self, task: Task, threads: int | None = None) -> Side:
        return Side(task, threads or self.threads, None)

    def measure(
        self, title: str, sides: Mapping[str, Side], rounds: int | None = None, warm_up: int = 1
    ) -> dict[str, list[Report]]:
        """Let all sides take turns; what comes back is one report per side and round."""
        rounds = rounds or self.rounds
        with ExitStack() as stack:
            bar = stack.enter_context(TrainingProgress(title, warm_up + rounds, quiet=self.quiet))
            workers = {
                name: stack.enter_context(Worker(side.task, threads=side.threads, prepare=side.prepare))
                for name, side in sides.items()
            }
            return take_turns(workers, rounds, warm_up, self.least_seconds, bar.advance)
