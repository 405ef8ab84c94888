"""Workers take turns in processes of their own, one at a time, and what goes wrong in them is told."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from suite.setup import Setup
from suite.worker import Worker, take_turns, turns_within

from unissl.errors import UserError


@dataclass(frozen=True)
class Count:
    """Each turn adds a number to a sum and reports it."""

    number: float

    def run(self, turn: Callable[..., None]) -> None:
        total = 0.0
        turn()
        while True:
            total += self.number
            turn(total=total, process=os.getpid(), prepared=float(os.environ.get("UNISSL_TEST_PREPARED", 0)))


@dataclass(frozen=True)
class Background:
    """A thread counts all the time; each turn reports how far it got."""

    def run(self, turn: Callable[..., None]) -> None:
        count = 0

        def work() -> None:
            nonlocal count
            while True:
                time.sleep(0.001)
                count += 1

        threading.Thread(target=work, daemon=True).start()
        while True:
            turn(count=count)


@dataclass(frozen=True)
class Fails:
    error: Exception

    def run(self, turn: Callable[..., None]) -> None:
        turn()
        raise self.error


@dataclass(frozen=True)
class Dies:
    def run(self, turn: Callable[..., None]) -> None:
        turn()
        os._exit(9)


def prepare() -> None:
    os.environ["UNISSL_TEST_PREPARED"] = "1"


def test_every_worker_has_a_process_of_its_own_and_only_ours_is_prepared() -> None:
    setup = Setup(threads=1, quick=True, prepare=prepare)
    sides = {"ours": setup.ours(Count(1)), "plain": setup.plain(Count(2))}
    reports = setup.measure("test", sides, rounds=3, warm_up=2)
    ours, plain = reports["ours"], reports["plain"]
    assert len(ours) == len(plain) == 3
    assert {report.facts["prepared"] for report in ours} == {1} and {r.facts["prepared"] for r in plain} == {0}
    assert len({report.facts["process"] for report in (*ours, *plain)}) == 2
    assert os.getpid() not in {report.facts["process"] for report in ours}


def test_reports_of_the_warm_up_are_thrown_away() -> None:
    with Worker(Count(1)) as worker:
        reports = take_turns({"one": worker}, rounds=2, warm_up=3)
    assert [report.facts["total"] for report in reports["one"]] == [4, 5]


def test_turns_in_a_row_give_means() -> None:
    with Worker(Count(1)) as worker:
        worker.wait_until_ready()
        report = worker.turn(4)
        assert report.turns == 4 and report.facts["total"] == 2.5
        assert worker.turn().facts["total"] == 5


def test_how_many_turns_last_long_enough() -> None:
    assert [turns_within(0.5, seconds) for seconds in (2.0, 0.4, 0.1, 0.0)] == [1, 1, 5, 100]


def test_a_worker_that_waits_is_stopped_with_all_its_threads() -> None:
    with Worker(Background()) as worker:
        worker.wait_until_ready()
        first = worker.turn().facts["count"]
        time.sleep(0.5)
        assert worker.turn().facts["count"] - first < 100  # 500 if the thread had gone on


def test_mistakes_of_the_user_come_out_as_a_sentence() -> None:
    with Worker(Fails(UserError("Choose another."))) as worker, pytest.raises(UserError, match="Choose another"):
        worker.wait_until_ready()
        worker.turn()


def test_other_errors_come_out_with_their_traceback() -> None:
    with Worker(Fails(ValueError("broken"))) as worker, pytest.raises(RuntimeError, match="ValueError: broken"):
        worker.wait_until_ready()
        worker.turn()


def test_a_process_that_is_gone_is_noticed() -> None:
    with Worker(Dies()) as worker, pytest.raises(UserError, match="lack of memory"):
        worker.wait_until_ready()
        worker.turn()
