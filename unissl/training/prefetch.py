"""Prepare the next batch in the background while the current step runs.

Batches are functions of the step number, so preparing one early changes no number. One thread, one batch ahead: enough
to hide reading from a slow disk and most of the augmentation, with at most one batch of extra memory. With several
processes each prepares its rows early; they are gathered in the main thread, where all processes keep one order.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from unissl.batches import Batches, Promoted, whole
from unissl.types import Batch


class Prefetch:
    """``at(step)`` of a :class:`Batches`, for steps in increasing order."""

    def __init__(self, batches: Batches, end: int, ahead: bool = True) -> None:
        self.batches = batches
        self.end = end
        self.ahead = ahead
        self.pending: tuple[int, Future[Batch]] | None = None

    def __enter__(self) -> Self:
        self.executor = ThreadPoolExecutor(1, "prefetch")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.executor.shutdown(cancel_futures=True)

    def at(self, step: int, promoted: Promoted = None) -> Batch:
        """The batch of ``step``. If images of the pool were promoted to the labelled set, nothing is prepared early,
        since this step may promote others."""
        batch = None
        if self.pending is not None and self.pending[0] == step and promoted is None:
            batch = self.pending[1].result()
        self.pending = None
        if batch is None:
            batch = self.batches.share_at(step, promoted)
        if self.ahead and promoted is None and step + 1 < self.end:
            self.pending = (step + 1, self.executor.submit(self.batches.share_at, step + 1))
        return whole(batch)
