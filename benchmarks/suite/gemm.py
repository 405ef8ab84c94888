"""The arithmetic limit: large float32 matrix products, on as many threads as the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import torch

from suite.measure import Report, median_fact


@dataclass(frozen=True)
class Gemm:
    """A turn is about a second of products of two square matrices."""

    size: int = 2048
    products: int = 16

    def run(self, turn: Callable[..., None]) -> None:
        a, b = torch.randn(2, self.size, self.size, dtype=torch.float32)
        out = torch.empty_like(a)
        turn()
        while True:
            seconds = [self._seconds(a, b, out) for _ in range(self.products)]
            arithmetic = 2 * self.size**3 / 1e9
            turn(gflops=arithmetic / min(seconds), sustained=arithmetic / mean(seconds))

    @staticmethod
    def _seconds(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> float:
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        return time.perf_counter() - start


def peak(reports: Sequence[Report]) -> float:
    """The rate of the fastest product in GFLOP/s."""
    return max(report.facts["gflops"] for report in reports)


def sustained(reports: Sequence[Report]) -> float:
    """The median of the rates over a second in GFLOP/s: the limit with other load on the machine, which slows a step of
    seconds but not the fastest product."""
    return median_fact(reports, "sustained")
