"""What is said while images are being worked on: nothing for two seconds, then how many, how fast, how long still."""

from __future__ import annotations

import io
import sys
import time

import pytest

from unissl.utils import progress
from unissl.utils.progress import Progress


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress.time, "monotonic", made.monotonic)
    return made


def test_quick_work_is_silent(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("features", 10) as bar:
        clock.now += 1
        bar.advance(10)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("done", "rate", "left"), [(600, "100", 24), (15, "2.5", 1194)])
def test_a_plain_line_has_the_rate(
    clock: Clock, capsys: pytest.CaptureFixture[str], done: int, rate: str, left: int
) -> None:
    with Progress("features", 3000) as bar:
        clock.now += 6
        bar.advance(done)
        bar.advance(0)
    assert capsys.readouterr().err == f"features: {done} of 3000, {rate} images/s, {left} s left\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_of_a_terminal_has_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with Progress("features", 100) as bar:
        for _ in range(4):
            bar.advance(10)
            time.sleep(0.02)
        assert bar._bar is not None
        bar._bar[0].refresh()
    assert "40/100" in screen.getvalue() and "images/s" in screen.getvalue()
