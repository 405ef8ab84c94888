"""(h) Cost of a step of each method relative to FixMatch, and the hours that the paper reports for a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from suite.cases import PAPER, SHORT, TINY, StepCase
from suite.measure import Fact, Result, Row, median_fact, seconds_of
from suite.ours import OurStep
from suite.setup import Setup
from unissl.methods.registry import all_methods

PAPER_HOURS = {"fixmatch": 18.5, "cgmatch": 29.5, "meta-expert": 19.2, "cpg": 22.6, "sage": 18.8}
"""Training of the paper's 2^18 steps on its GPU."""
BASE = "fixmatch"


def methods(setup: Setup) -> Result:
    others = [name for name in all_methods() if name != BASE]
    if setup.quick:
        rows = _rows(setup, TINY, ["sage"])
    else:
        rows = _rows(setup, PAPER, [name for name in PAPER_HOURS if name != BASE])
        rows += _rows(setup, SHORT, others)
    title = "Cost of a step of each method, relative to FixMatch"
    return Result("methods", title, rows, ("FixMatch", "method"), "times as long")


def _rows(setup: Setup, case: StepCase, names: Iterable[str]) -> list[Row]:
    return [_row(setup, case, name) for name in names]


def _row(setup: Setup, case: StepCase, name: str) -> Row:
    sides = {method: setup.ours(OurStep(replace(case, method=method))) for method in (BASE, name)}
    reports = setup.measure(f"methods: {name}, {case.label}", sides)
    base, some = seconds_of(reports[BASE]), seconds_of(reports[name])
    facts: dict[str, Fact] = {"forward s": median_fact(reports[name], "forward")}
    if name in PAPER_HOURS:
        facts["paper h"] = PAPER_HOURS[name]
        facts["paper ratio"] = PAPER_HOURS[name] / PAPER_HOURS[BASE]
        facts["h for 2^18 steps here"] = median(some) * 2**18 / 3600
    return Row(f"{name}, {case.label}", base, some, facts)
