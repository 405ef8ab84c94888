"""(d) Time of the parts of a step, and the share of it that is spent on data.

Our step is interleaved with one that repeats a ready batch and writes a log line every step. The network's time is
taken from the latter, which has no background work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from suite.cases import DIGITS, PAPER, SHORT, TINY, config_of, synthetic
from suite.gri import Gri
from suite.measure import Fact, Report, Result, Row, median_fact, seconds_of
from suite.ours import OurStep, OurViews
from suite.setup import Setup
from unissl.nets import build


def waiting(setup: Setup) -> Result:
    rows = []
    for case in (TINY,) if setup.quick else (PAPER, SHORT, DIGITS):
        dim = build(case.net, case.classes).feat_dim
        sides = {
            "step": setup.ours(OurStep(case)),
            "ready": setup.ours(OurStep(replace(case, log_every=1), ready_data=True)),
            "views": setup.ours(OurViews(case)),
            "gri": setup.ours(Gri(2 * case.unlabelled, "thin", dim)),
        }
        reports = setup.measure(f"waiting: {case.label}", sides, warm_up=2)
        log_every = config_of(case, synthetic(replace(case, pool_file=None, pool=512))[0]).train.log_every
        facts = breakdown(reports, log_every)
        rows.append(Row(case.label, seconds_of(reports["ready"]), seconds_of(reports["step"]), facts))
    return Result(
        "waiting", "Time of the parts of a step, and cost of data", rows, ("ready data", "real data"), "times as long"
    )


def breakdown(reports: Mapping[str, Sequence[Report]], log_every: int) -> dict[str, Fact]:
    """Seconds of the parts of a step, and each as a share of the whole.

    *data wait* is the time that the training thread waits for its batch; *views alone* the time of making the batch in
    the foreground, which prefetching hides; *rest* is the whole minus all parts, so the slowdown by background work;
    *without the network* is everything but the network's forward and backward pass.
    """
    whole = median(seconds_of(reports["step"]))
    gri = median(seconds_of(reports["gri"]))
    ready = reports["ready"]
    logging = median_fact(ready, "before")
    parts = {
        "network": median_fact(ready, "forward") + median_fact(ready, "backward") - gri,
        "gri": gri,
        "optimiser": median_fact(ready, "optimiser"),
        "ema": median_fact(ready, "ema"),
        "logging": logging / log_every,
        "data wait": median_fact(reports["step"], "before"),
    }
    parts["rest"] = whole - sum(parts.values())
    facts: dict[str, Fact] = {"views alone s": median(seconds_of(reports["views"]))}
    for name, seconds in parts.items():
        facts[f"{name} s"] = seconds
        facts[f"{name} share"] = seconds / whole
    facts["without the network share"] = 1 - parts["network"] / whole
    return facts
