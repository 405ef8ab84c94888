"""Engines run many tasks: in processes of this machine, or on a Ray cluster. The results are the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from unissl_paper.grid.worker import Report, Task


class Engine(Protocol):
    """Runs tasks in any order and yields a report for each as it ends, until one has ``stop`` set."""

    def run(self, tasks: Sequence[Task]) -> Iterator[Report]: ...
