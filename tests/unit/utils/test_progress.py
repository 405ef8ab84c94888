"""Progress in a terminal, a notebook and a log: nothing for short work, then how many, how fast, how long still."""

from __future__ import annotations

import io
import logging
import sys
import types
from typing import Any

import pytest

from unissl.utils import progress
from unissl.utils.progress import Progress, followed_by, format_seconds, log, log_to_stderr, silenced


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock.monotonic)
    return clock


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO", "unissl")
    return caplog


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Not a fixture: pytest puts back its own stderr before each test."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def test_short_work_shows_nothing(
    clock: Clock, logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream in (make_terminal(monkeypatch), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress("features", 10) as bar:
            clock.now += 1
            bar.advance(10)
        assert stream.getvalue() == "" and logged.messages == []


@pytest.mark.parametrize(("done", "rate", "left"), [(600, "50", "48 s"), (18, "1.5", "33 min")])
def test_a_log_has_a_line_now_and_then(
    clock: Clock, logged: pytest.LogCaptureFixture, done: int, rate: str, left: str
) -> None:
    with Progress("features", 3000) as bar:
        clock.now += 12
        bar.advance(done)
        bar.advance(0)
    assert logged.messages == [f"features: {done} of 3000 images, {rate} images/s, {left} left"]
    assert logged.records[0].levelno == logging.INFO


def test_a_resumed_work_has_the_rate_of_this_process_and_values_stay(
    clock: Clock, logged: pytest.LogCaptureFixture
) -> None:
    with Progress("sage", 100, done=60, unit="steps") as bar:
        bar.advance(9, {"loss": "0.512", "pseudo-labels used": "43%"})
        clock.now += 10
        bar.advance(1, {"accuracy": "81.2%"})
    assert logged.messages == [
        "sage: 70 of 100 steps, 1.0 steps/s, 30 s left, loss 0.512, pseudo-labels used 43%, accuracy 81.2%"
    ]


def test_the_time_left_counts_what_follows(clock: Clock, logged: pytest.LogCaptureFixture) -> None:
    with followed_by(3), Progress("sage", 40, unit="steps") as bar:
        clock.now += 10
        bar.advance(10)
    assert ", 2 min left" in logged.messages[0]  # 30 + 3 * 40 seconds
    with followed_by(3), followed_by(2), Progress("sage", 40, unit="steps") as bar:
        clock.now += 10
        bar.advance(10)
    assert ", 4 min left" in logged.messages[1]  # 30 + 3 * 40 + 2 * 40 seconds


def test_the_bar_of_a_terminal(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = make_terminal(monkeypatch)
    with Progress("sage", 100, unit="steps") as bar:
        clock.now += 4
        bar.advance(40, {"loss": "0.512"})
        assert bar._display.bar is not None  # type: ignore[attr-defined]
        bar._display.bar[0].refresh()  # type: ignore[attr-defined]
    for text in ("sage", "40/100", "10 steps/s", "6 s left", "loss 0.512"):
        assert text in screen.getvalue()


def test_messages_appear_above_the_bar(clock: Clock, installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = make_terminal(monkeypatch)
    with Progress("sage", 100) as bar:
        clock.now += 4
        bar.advance(40)
        log.info("half of it")
    assert "half of it\n" in screen.getvalue()


class Cell:
    """The output of a cell."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, text: dict[str, str], **options: Any) -> Cell:
        assert options == {"raw": True, "display_id": True}
        self.shown.append(text["text/plain"])
        return self

    def update(self, text: dict[str, str], raw: bool) -> None:
        self.shown[-1] = text["text/plain"]


def test_a_notebook_has_one_line_that_changes(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, shell = Cell(), type("ZMQInteractiveShell", (), {})()
    display = types.ModuleType("IPython.display")
    display.display = cell.display  # type: ignore[attr-defined]
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with Progress("features", 100) as bar:
        for _ in range(10):
            clock.now += 1
            bar.advance(10)
    assert cell.shown == ["features: 100 of 100 images, 10 images/s, 0 s left"]


@pytest.fixture
def installed() -> Any:
    handlers, level = list(log.handlers), log.level
    log_to_stderr()
    log_to_stderr()  # once is enough
    yield
    log.handlers[:] = handlers
    log.setLevel(level)


def test_messages_on_stderr_are_plain(installed: None, capsys: pytest.CaptureFixture[str]) -> None:
    log.info("%s is finished", "run [red]")
    log.warning("few labels")
    assert capsys.readouterr().err == "run [red] is finished\nwarning: few labels\n"


def test_silenced(
    clock: Clock, installed: None, logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = make_terminal(monkeypatch)
    with silenced(), Progress("sage", 100) as bar:
        clock.now += 20
        bar.advance(40)
        log.info("message")
        log.warning("few labels")
        with silenced(logging.ERROR), silenced():
            log.warning("many labels")
    assert screen.getvalue() == "warning: few labels\n" and logged.messages == ["few labels"]
    log.info("message")
    assert logged.messages == ["few labels", "message"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "60 s"), (119, "119 s"), (121, "2 min"), (3600, "60 min"), (7500, "2 h 05 min")],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
