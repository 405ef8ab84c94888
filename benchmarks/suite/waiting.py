"""(d) Where the time of a step goes, and how much of it is spent on data.

Our step runs beside one that is served the same ready batch again and again and writes a log line every step. The
network's own time is taken from the latter, where nothing works in the background.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from unissl.bench.cases import DIGITS, PAPER, SHORT, TINY, config_of, synthetic
from unissl.bench.gri import Gri
from unissl.bench.measure import Fact, Report, Result, Row, median_fact, seconds_of
from unissl.bench.ours import OurStep, OurViews
from unissl.bench.setup import Setup
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
        "waiting", "Where a step goes, and what data cost", rows, ("ready data", "real data"), "times as long"
    )


def breakdown(reports: Mapping[str, Sequence[Report]], log_every: int) -> dict[str, Fact]:
    """Seconds of the parts of a step, and each as a share of the whole.

    *data wait* is what the training thread waits for its batch; *views alone* what making the batch takes in the open,
    which the step hides where it is done in the background; *rest* is the whole minus all parts, so what work in the
    background takes from the others; *beside the network* is everything but the network's forward and backward pass.
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
    facts["beside the network share"] = 1 - parts["network"] / whole
    return facts
