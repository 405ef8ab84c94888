"""Ways to carry out many tasks: processes of this machine, or a Ray cluster. The results are the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from unissl.paper.grid.worker import Report, Task


class Engine(Protocol):
    """Carries out tasks in any order and yields a report for each as it ends, until one says to stop."""

    def run(self, tasks: Sequence[Task]) -> Iterator[Report]: ...
