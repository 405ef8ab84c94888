"""(a) The whole training step, views and logging included, against plain PyTorch and against the arithmetic limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from suite.cases import DIGITS, PAPER, SHORT, TINY, StepCase
from suite.flops import convolution_flops
from suite.gemm import Gemm, peak, sustained
from suite.measure import Fact, Report, Result, Row, median_fact, peak_megabytes, seconds_of
from suite.ours import OurStep
from suite.plain import PlainStep
from suite.setup import Setup
from unissl.nets import build

SPANS = ("before", "forward", "backward", "optimiser", "ema")


def step(setup: Setup) -> Result:
    rows = []
    for case in (TINY,) if setup.quick else (PAPER, SHORT, DIGITS):
        for compiled in (False,) if setup.quick else (False, True):
            rows.append(_row(setup, replace(case, compiled=compiled)))
    return Result("step", "Whole training step of SAGE", rows)


def _row(setup: Setup, case: StepCase) -> Row:
    sides = {
        "ours": setup.ours(OurStep(case)),
        "plain": setup.plain(PlainStep(case)),
        "gemm": setup.ours(Gemm(512 if setup.quick else 2048)),
    }
    try:
        reports = setup.measure(f"step: {case.label}", sides, warm_up=2)
    except RuntimeError as error:
        if not case.compiled:
            raise
        return Row(case.label, facts={"not measured": str(error).strip().splitlines()[-1]})
    ours, plain = reports["ours"], reports["plain"]
    facts: dict[str, Fact] = {
        **peak_facts(case, ours, plain, peak(reports["gemm"]), sustained(reports["gemm"])),
        "ours peak MB": peak_megabytes(ours),
        "plain peak MB": peak_megabytes(plain),
        "ours page faults": median(report.faults for report in ours),
        "plain page faults": median(report.faults for report in plain),
        **{f"{name} s": median_fact(ours, name) for name in SPANS},
    }
    if case.compiled:
        facts["compile s"] = median_fact(ours, "first_step") - median(seconds_of(ours))
    return Row(case.label, seconds_of(ours), seconds_of(plain), facts)


def images_of(case: StepCase) -> int:
    """Images that pass the network in a step: labelled ones, and two views of each unlabelled one."""
    return case.labelled + 2 * case.unlabelled


def peak_facts(
    case: StepCase, ours: Sequence[Report], plain: Sequence[Report], limit: float, steady: float
) -> dict[str, Fact]:
    """Rates in images and in useful convolution arithmetic, and the latter as shares of the GEMM rates."""
    images = images_of(case)
    flops = images * convolution_flops(build(case.net, case.classes), 3, case.size, case.size)
    our_rate, plain_rate = (flops / median(seconds_of(reports)) / 1e9 for reports in (ours, plain))
    return {
        "images/s": images / median(seconds_of(ours)),
        "GFLOP/s": our_rate,
        "GEMM GFLOP/s": limit,
        "share of peak": our_rate / limit,
        "plain share of peak": plain_rate / limit,
        "GEMM sustained GFLOP/s": steady,
        "share of sustained": our_rate / steady,
    }
