"""What is said about measured seconds: medians, ranges, ratios of pairs, and all of it as JSON."""

from __future__ import annotations

import json
import mmap

import pytest
from suite.measure import Report, Result, Row, Spread, peak_megabytes, ratios
from suite.usage import STATUS, Usage, parse_status, usage


def used(faults: int = 0, system: float = 0.0, peak: int = 0) -> Usage:
    return Usage(resident=0, anonymous=0, peak=peak, faults=faults, user=0.0, system=system)


def test_spread_is_median_and_range() -> None:
    assert Spread.of([3.0, 1.0, 2.0, 10.0, 2.5]) == Spread(2.5, 1.0, 10.0, 5)
    assert Spread.of([1.0, 2.0]).median == 1.5


def test_the_ratio_is_taken_pair_by_pair() -> None:
    """A machine that is slow for one round slows both sides of it: ratios of medians would see 3.5 here."""
    ours, plain = [1.0, 1.0, 10.0, 2.0, 4.0], [3.0, 3.0, 30.0, 7.0, 12.0]
    assert ratios(ours, plain) == [3.0, 3.0, 3.0, 3.5, 3.0]
    assert Row("case", ours, plain).ratio == Spread(3.0, 3.0, 3.5, 5)


def test_pairs_must_be_complete() -> None:
    with pytest.raises(ValueError):
        ratios([1.0, 2.0], [1.0])


def test_a_side_that_was_not_measured_has_no_ratio() -> None:
    row = Row("n = 16384", [1.0, 2.0])
    assert row.ratio is None
    assert set(row.as_json(("ours", "plain"))) == {"case", "ours", "facts"}


def test_faults_and_system_time_are_those_of_one_turn() -> None:
    report = Report(0.5, used(faults=100, system=1.0), used(faults=160, system=1.5, peak=3 * 2**20), turns=10)
    assert report.faults == 6 and report.system_seconds == pytest.approx(0.05)
    assert peak_megabytes([report, Report(0.5, used(), used(peak=2**20))]) == 3


def test_a_result_becomes_json() -> None:
    result = Result("step", "Whole step", [Row("small", [1.0, 2.0, 3.0], [2.0, 5.0, 6.0], {"share": 0.5})])
    (row,) = json.loads(json.dumps(result.as_json()))["rows"]
    assert row["ours"] == {"median": 2.0, "low": 1.0, "high": 3.0, "count": 3, "seconds": [1.0, 2.0, 3.0]}
    assert row["ratio"] == {"median": 2.0, "low": 2.0, "high": 2.5, "count": 3}
    assert row["facts"] == {"share": 0.5}


def test_status_lines_in_bytes() -> None:
    text = "Name:\tpython\nVmHWM:\t    2048 kB\nRssAnon:\t     100 kB\nThreads:\t1\n"
    assert parse_status(text) == {"VmHWM": 2048 * 1024, "RssAnon": 100 * 1024}


@pytest.mark.skipif(not STATUS.exists(), reason="this system does not tell")
def test_usage_sees_memory_that_is_taken() -> None:
    before = usage()
    taken = mmap.mmap(-1, 64 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # not what was freed before
    for page in range(0, len(taken), mmap.PAGESIZE):
        taken[page] = 1
    after = usage()
    assert after.faults > before.faults
    assert after.anonymous > before.anonymous + 50 * 2**20 and after.peak >= after.resident
