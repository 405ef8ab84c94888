"""Being asked to stop: save what there is, leave with a code that says that a restart will go on from there.

Inside a training loop a signal is noted and obeyed after the step, with a checkpoint (:func:`listen`). Everywhere else
a command stops where it is (:func:`leave_when_asked`): every file is moved into its place whole and training itself is
saved, so there is nothing to finish first.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

PREEMPTED = 75
"""Exit code after SIGTERM or SIGUSR1: the system's EX_TEMPFAIL, which invites to try again. Not 128 + signal, which is
also what a shell says of a process that died of the signal with nothing saved."""
FROM_SCHEDULERS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
"""Windows has no SIGUSR1."""


class StopRequest:
    """Holds the signal that asked training to stop, if one did."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


class Interrupted(Exception):
    """Stopped on a signal, with everything saved that a restart needs. ``step`` is given where training stopped."""

    def __init__(self, signal_number: int, step: int | None = None) -> None:
        name = signal.Signals(signal_number).name
        saved = "what is done is kept" if step is None else "the state is saved"
        super().__init__(f"stopped by {name}{'' if step is None else f' after step {step}'}; {saved}")
        self.exit_code = 128 + signal_number if signal_number == signal.SIGINT else PREEMPTED


@contextmanager
def defer_signals() -> Iterator[StopRequest]:
    """Note SIGINT, SIGTERM and SIGUSR1. A second SIGINT acts as usual; schedulers repeat theirs without meaning more.
    Off outside the main thread."""
    request = StopRequest()

    def note(number: int, frame: FrameType | None) -> None:
        request.signal = number
        if number == signal.SIGINT:
            signal.signal(number, before[number])

    before: dict[int, Any] = {}
    with _handlers((signal.SIGINT, *FROM_SCHEDULERS), note, before):
        yield request


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Turn SIGTERM and SIGUSR1 into :class:`Interrupted`; SIGINT is a KeyboardInterrupt already."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    with _handlers(FROM_SCHEDULERS, leave, {}):
        yield


@contextmanager
def _handlers(numbers: tuple[int, ...], handler: Any, before: dict[int, Any]) -> Iterator[None]:
    """Install a handler for a while; the ones that were there are in ``before``."""
    try:
        for number in numbers:
            before[number] = signal.signal(number, handler)
    except ValueError:
        pass  # Signals belong to the main thread; a library user in another thread keeps theirs.
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
