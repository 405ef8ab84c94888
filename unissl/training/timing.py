"""Minutes turned into steps once, before step 0. From then on only steps exist, so a run stays reproducible."""

from __future__ import annotations

import time
from collections.abc import Callable

from unissl.distributed.collectives import broadcast_from_main

WARM_UP_STEPS = 3
MIN_STEPS, MIN_SECONDS = 6, 3.0
MAX_STEPS_ON_FEATURES = 600
"""Steps that the vectors of a frozen network are trained on at most, however long the budget; more of them made the
classifier worse (docs/results.md)."""


def seconds_per_call(call: Callable[[int], object]) -> float:
    """Mean time of a call, the slowest and quickest sixth left out, over at least six calls and three seconds, after
    three that do not count."""
    times: list[float] = []
    for number in range(10_000):
        start = time.perf_counter()
        call(number)
        elapsed = broadcast_from_main(lambda: time.perf_counter() - start)  # noqa: B023 - called at once
        if number >= WARM_UP_STEPS:
            times.append(elapsed)
        if len(times) >= MIN_STEPS and sum(times) >= MIN_SECONDS:
            break
    edge = len(times) // 6
    kept = sorted(times)[edge : len(times) - edge]
    return sum(kept) / len(kept)


def steps_within(minutes: float, per_step: float, overhead: float) -> int:
    """How many steps fit when ``overhead`` seconds of evaluation and writing are set aside; at least one."""
    return max(1, int((minutes * 60 - overhead) / per_step))
