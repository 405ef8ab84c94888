"""Minutes to steps: the arithmetic, and a clock that the test turns."""

from __future__ import annotations

import pytest

from unissl.run.budget import steps_within
from unissl.training.timing import seconds_per_call


@pytest.mark.parametrize(
    ("seconds", "per_step", "steps"), [(60, 0.5, 120), (50, 0.5, 100), (600, 0.7, 857), (0.06, 5, 1), (-540, 0.5, 1)]
)
def test_steps_within(seconds: float, per_step: float, steps: int) -> None:
    assert steps_within(seconds, per_step) == steps


class Clock:
    """A clock that stands still between calls."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def timed(durations: list[float], monkeypatch: pytest.MonkeyPatch) -> tuple[float, int]:
    """What is measured when call number i takes ``durations[i]``, the last one for ever; and the number of calls."""
    clock, calls = Clock(), []
    monkeypatch.setattr("unissl.training.timing.time.perf_counter", clock)

    def call(number: int) -> None:
        calls.append(number)
        clock.now += durations[min(number, len(durations) - 1)]

    per_call = seconds_per_call(call)
    assert calls == list(range(len(calls)))
    return per_call, len(calls)


def test_the_first_calls_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timed([90.0, 90.0, 90.0, 2.0], monkeypatch) == (2.0, 3 + 6)


def test_quick_calls_are_repeated_for_three_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    per_call, calls = timed([0.5], monkeypatch)
    assert (per_call, calls) == (0.5, 3 + 6)
    assert timed([0.25], monkeypatch) == (0.25, 3 + 12)


def test_one_slow_call_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timed([1.0, 1.0, 1.0, 50.0, 1.0], monkeypatch)[0] == 1.0


def test_calls_that_differ_by_turns_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the phases of a method do: 1, 2 and 6 seconds by turns, of which a third of the calls are dear."""
    turns = [1.0, 2.0, 6.0] * 3
    assert timed(turns, monkeypatch) == (pytest.approx((1 + 2 + 2 + 6) / 4), 9)


def test_calls_that_take_no_time_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timed([0.0], monkeypatch) == (0.0, 10_000)
