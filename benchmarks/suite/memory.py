"""(f) Memory of a training step: peak, page faults and system time."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from suite.cases import PAPER, SHORT, TINY
from suite.measure import Fact, Result, Row, peak_megabytes, seconds_of
from suite.ours import OurStep
from suite.plain import PlainStep
from suite.setup import Setup


def memory(setup: Setup) -> Result:
    cases = (TINY,) if setup.quick else (PAPER, replace(PAPER, compiled=True), SHORT)
    rows = []
    for case in cases:
        sides = {"ours": setup.ours(OurStep(case)), "plain": setup.plain(PlainStep(case))}
        reports = setup.measure(f"memory: {case.label}", sides)
        facts: dict[str, Fact] = {}
        for name, some in reports.items():
            facts[f"{name} peak MB"] = peak_megabytes(some)
            facts[f"{name} page faults"] = median(report.faults for report in some)
            facts[f"{name} system s"] = median(report.system_seconds for report in some)
        rows.append(Row(case.label, seconds_of(reports["ours"]), seconds_of(reports["plain"]), facts))
    return Result("memory", "Memory of a training step", rows)
