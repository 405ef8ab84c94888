"""Signals that ask a command to stop: save the state, say how to continue, exit with a code that invites a restart.

Inside a training loop a signal is deferred to the end of the step, where a checkpoint is written
(:func:`defer_signals`). Everywhere else a command stops at once (:func:`exit_on_signal`): every file is moved to its
path whole and training is saved, so there is nothing to finish first.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from os import PathLike
from types import FrameType
from typing import Any

PREEMPTED = 75
"""Exit code after SIGTERM or SIGUSR1: the system's EX_TEMPFAIL, which invites to try again. Not 128 + signal, which is
also a shell's code for a process that the signal killed with nothing saved."""
FROM_SCHEDULERS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
"""Windows has no SIGUSR1."""
REPEAT = ("finished work is kept", "repeat the command to continue")
"""What is kept when a command stops, and how to continue."""

_hint: ContextVar[tuple[str, str]] = ContextVar("hint", default=REPEAT)


def resume_hint(folder: PathLike[str] | str) -> AbstractContextManager[None]:
    """Inside, a stopped command names the one that continues the run in ``folder``."""
    command = f"unissl train --resume --out {shlex.quote(str(folder))}"
    return stop_hint(f"finished stages are saved in {folder}", f"continue with: {command}")


@contextmanager
def stop_hint(kept: str, how: str) -> Iterator[None]:
    """Inside, a stopped command says what is ``kept`` and ``how`` to continue. The outermost hint counts."""
    hint = (kept, how) if _hint.get() == REPEAT else _hint.get()
    token = _hint.set(hint)
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = stop.args or ("stopped by Ctrl-C", *hint)
        raise
    finally:
        _hint.reset(token)


def interrupt_message(stop: KeyboardInterrupt) -> str:
    """The sentence that a command prints after Ctrl-C: what is kept and how to continue. Code that knows more than
    :func:`stop_hint` puts its own sentence into ``stop.args``."""
    return "; ".join(stop.args or ("stopped by Ctrl-C", *_hint.get()))


class StopRequest:
    """Holds the signal that asked training to stop, if one did."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


class Interrupted(Exception):
    """Stopped by a signal, with everything saved that a restart needs; ``step`` is the last one of training."""

    def __init__(self, signal_number: int, step: int | None = None) -> None:
        kept, how = _hint.get()
        when, kept = ("", kept) if step is None else (f" after step {step}", "the state is saved")
        super().__init__(f"stopped by {signal.Signals(signal_number).name}{when}; {kept}; {how}")
        self.exit_code = 128 + signal_number if signal_number == signal.SIGINT else PREEMPTED


@contextmanager
def defer_signals() -> Iterator[StopRequest]:
    """Record SIGINT, SIGTERM and SIGUSR1 instead of stopping. A second SIGINT stops at once; schedulers repeat theirs
    without meaning more. Has no effect outside the main thread."""
    request = StopRequest()

    def record(number: int, frame: FrameType | None) -> None:
        request.signal = number
        if number == signal.SIGINT:
            signal.signal(number, previous[number])

    previous: dict[int, Any] = {}
    with _handlers((signal.SIGINT, *FROM_SCHEDULERS), record, previous):
        yield request


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Turn SIGTERM and SIGUSR1 into :class:`Interrupted`; SIGINT is a KeyboardInterrupt already."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    with _handlers(FROM_SCHEDULERS, stop, {}):
        yield


@contextmanager
def _handlers(numbers: tuple[int, ...], handler: Any, previous: dict[int, Any]) -> Iterator[None]:
    """Install a handler for a while; ``previous`` receives the ones that it replaces."""
    try:
        for number in numbers:
            previous[number] = signal.signal(number, handler)
    except ValueError:
        pass  # Signals belong to the main thread; a library user in another thread keeps theirs.
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
