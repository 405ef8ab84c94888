"""Being asked to stop: finish the step, write a checkpoint, leave with a code that says why."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequest:
    """Holds the signal that asked training to stop, if one did."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


class Interrupted(Exception):
    """Training stopped on a signal after writing a checkpoint. The exit code is the shell's: 128 + signal."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}; the state is saved")
        self.exit_code = 128 + signal_number


@contextmanager
def listen() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM; a second one of the same kind acts as usual. Off outside the main thread."""
    request = StopRequest()

    def note(number: int, frame: FrameType | None) -> None:
        request.signal = number
        signal.signal(number, before[number])

    before: dict[int, Any] = {}
    try:
        for caught in (signal.SIGINT, signal.SIGTERM):
            before[caught] = signal.signal(caught, note)
    except ValueError:
        pass  # Signals belong to the main thread; a library user in another thread keeps theirs.
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
