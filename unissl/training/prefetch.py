"""The next batch is made in the background while the current step runs.

Batches are functions of the step number, so making one early changes no number. One thread, one batch ahead: enough to
hide reading from a slow disk and most of the augmentation, and never more than one batch of extra memory. With several
processes each makes its share early; these are put together in the open, where all processes keep one order.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from unissl.batches import Batches, Promoted, whole
from unissl.types import Batch


class Prefetch:
    """``at(step)`` of a :class:`Batches`, for steps that are asked for in order."""

    def __init__(self, batches: Batches, end: int, ahead: bool = True) -> None:
        self.batches = batches
        self.end = end
        self.ahead = ahead
        self.waiting: tuple[int, Future[Batch]] | None = None

    def __enter__(self) -> Self:
        self.pool = ThreadPoolExecutor(1, "prefetch")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.shutdown(cancel_futures=True)

    def at(self, step: int, promoted: Promoted = None) -> Batch:
        """The batch of ``step``. Where images have joined the labelled set nothing is made early, since what the
        next step will see is not known before this one is over."""
        made = None
        if self.waiting is not None and self.waiting[0] == step and promoted is None:
            made = self.waiting[1].result()
        self.waiting = None
        if made is None:
            made = self.batches.share_at(step, promoted)
        if self.ahead and promoted is None and step + 1 < self.end:
            self.waiting = (step + 1, self.pool.submit(self.batches.share_at, step + 1))
        return whole(made)
