"""How long a call takes on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable

from unissl.distributed.collectives import broadcast_from_main

WARM_UP_CALLS = 3
MIN_CALLS, MIN_SECONDS = 6, 3.0


def seconds_per_call(call: Callable[[int], object]) -> float:
    """Mean time of a call without the slowest and fastest sixth, over at least six calls and three seconds, after
    three calls of warm-up."""
    times: list[float] = []
    for number in range(10_000):
        start = time.perf_counter()
        call(number)
        elapsed = broadcast_from_main(lambda: time.perf_counter() - start)  # noqa: B023 - called immediately
        if number >= WARM_UP_CALLS:
            times.append(elapsed)
        if len(times) >= MIN_CALLS and sum(times) >= MIN_SECONDS:
            break
    trim = len(times) // 6
    middle = sorted(times)[trim : len(times) - trim]
    return sum(middle) / len(middle)
