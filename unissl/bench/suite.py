"""The benchmarks by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from unissl.bench import machine
from unissl.bench.augment import augment
from unissl.bench.gri import gri
from unissl.bench.growth import growth
from unissl.bench.measure import Result
from unissl.bench.memory import memory
from unissl.bench.methods import methods
from unissl.bench.setup import Setup
from unissl.bench.startup import startup
from unissl.bench.step import step
from unissl.bench.waiting import waiting

BENCHMARKS: dict[str, Callable[[Setup], Result]] = {
    "startup": startup,
    "augment": augment,
    "gri": gri,
    "step": step,
    "waiting": waiting,
    "memory": memory,
    "growth": growth,
    "methods": methods,
}


def as_json(setup: Setup, results: Sequence[Result]) -> dict[str, Any]:
    """Everything that was measured, and on what."""
    return {"machine": machine.facts(setup), "benchmarks": {result.name: result.as_json() for result in results}}
