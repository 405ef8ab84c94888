"""Interleaved measurements and their statistics: medians, ranges, ratios, results as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from suite.usage import Usage

MIN_ROUNDS = 5
"""Pairs that a ratio is the median of, at least."""

Fact = float | int | str | None


@dataclass(frozen=True)
class Report:
    """A turn of a worker, or the mean of several in a row: its seconds, and the facts that the task reports.

    ``before`` and ``after`` are the resources used by the process at the start of the first turn and at the end of the
    last.
    """

    seconds: float
    before: Usage
    after: Usage
    facts: Mapping[str, float] = field(default_factory=dict)
    turns: int = 1

    @property
    def faults(self) -> float:
        """Page faults of one turn."""
        return (self.after.faults - self.before.faults) / self.turns

    @property
    def system_seconds(self) -> float:
        """System time of one turn in seconds, mostly for page faults."""
        return (self.after.system - self.before.system) / self.turns


@dataclass(frozen=True)
class Spread:
    """Median and range of some values."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values), len(values))

    def as_json(self) -> dict[str, float | int]:
        return {"median": self.median, "low": self.low, "high": self.high, "count": self.count}


def ratios(ours: Sequence[float], other: Sequence[float]) -> list[float]:
    """other / ours, pair by pair: above 1 if ours takes less time."""
    return [one / our for our, one in zip(ours, other, strict=True)]


@dataclass(frozen=True)
class Row:
    """One measured case: seconds of every round on both sides, or on one, and further numbers."""

    case: str
    ours: Sequence[float] = ()
    other: Sequence[float] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict)

    @property
    def ratio(self) -> Spread | None:
        return Spread.of(ratios(self.ours, self.other)) if self.ours and self.other else None

    def as_json(self, names: tuple[str, str]) -> dict[str, Any]:
        tree: dict[str, Any] = {"case": self.case}
        for name, seconds in zip(names, (self.ours, self.other), strict=True):
            if seconds:
                tree[name] = {**Spread.of(seconds).as_json(), "seconds": list(seconds)}
        if self.ratio is not None:
            tree["ratio"] = self.ratio.as_json()
        return {**tree, "facts": dict(self.facts)}


@dataclass(frozen=True)
class Result:
    """All cases of one benchmark. ``sides`` names the two that are compared, ``ratio`` what their ratio means."""

    name: str
    title: str
    rows: Sequence[Row]
    sides: tuple[str, str] = ("ours", "plain")
    ratio: str = "times faster"

    def as_json(self) -> dict[str, Any]:
        rows = [row.as_json(self.sides) for row in self.rows]
        return {"title": self.title, "sides": list(self.sides), "ratio": self.ratio, "rows": rows}


def seconds_of(reports: Sequence[Report]) -> list[float]:
    return [report.seconds for report in reports]


def median_fact(reports: Sequence[Report], name: str) -> float:
    return median(report.facts[name] for report in reports)


def peak_megabytes(reports: Sequence[Report]) -> float:
    """Peak memory of the process."""
    return max(report.after.peak for report in reports) / 2**20
