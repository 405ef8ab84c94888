"""The arithmetic limit: float32 matrix products of a size that suits any cache, on as many threads as the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from unissl.bench.measure import Report


@dataclass(frozen=True)
class Gemm:
    """A few products of two square matrices each turn."""

    size: int = 2048
    products: int = 4

    def run(self, turn: Callable[..., None]) -> None:
        a, b = torch.randn(2, self.size, self.size, dtype=torch.float32)
        out = torch.empty_like(a)
        turn()
        while True:
            best = min(self._seconds(a, b, out) for _ in range(self.products))
            turn(gflops=2 * self.size**3 / best / 1e9)

    @staticmethod
    def _seconds(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> float:
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        return time.perf_counter() - start


def peak(reports: Sequence[Report]) -> float:
    """The best rate of the run, in GFLOP/s."""
    return max(report.facts["gflops"] for report in reports)
