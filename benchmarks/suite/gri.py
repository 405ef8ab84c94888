"""(c) GRI, forward and backward on one core: the thin form against whole matrices, in time and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from suite.measure import Result, Row, median_fact, seconds_of
from suite.plain_gri import plain_contrast
from suite.setup import Setup
from suite.usage import usage
from unissl.ops.graph import contrast_loss
from unissl.ops.simplex import simplex_anchors

DIM = 128


@dataclass(frozen=True)
class Gri:
    """A turn is L_con of ``nodes`` unit vectors and its gradient."""

    nodes: int
    way: Literal["thin", "plain"]
    dim: int = DIM

    def run(self, turn: Callable[..., None]) -> None:
        generator = torch.Generator().manual_seed(0)
        z = functional.normalize(torch.randn(self.nodes, self.dim, generator=generator)).requires_grad_()
        anchors = simplex_anchors(self.dim)
        before = usage().resident
        turn()
        while True:
            z.grad = None
            torch.autograd.backward(self._loss(z[: self.nodes // 2], z[self.nodes // 2 :], anchors))
            turn(extra_mb=(usage().peak - before) / 2**20)

    def _loss(self, z_weak: Tensor, z_strong: Tensor, anchors: Tensor) -> Tensor:
        if self.way == "thin":
            return contrast_loss(z_weak, z_strong)
        return plain_contrast(z_weak, z_strong, anchors, 0.1, 5, 2.0, 0.5, 0.25)[0]


def gri(setup: Setup) -> Result:
    rows = []
    for nodes in (128,) if setup.quick else (896, 2048, 4096):
        sides = {"ours": setup.ours(Gri(nodes, "thin"), 1), "plain": setup.plain(Gri(nodes, "plain"), 1)}
        reports = setup.measure(f"gri: n = {nodes}", sides)
        ours, plain = reports["ours"], reports["plain"]
        facts = {"extra MB": median_fact(ours, "extra_mb"), "plain extra MB": median_fact(plain, "extra_mb")}
        rows.append(Row(f"n = {nodes}", seconds_of(ours), seconds_of(plain), facts))
    for nodes in (512,) if setup.quick else (8192, 16384):
        reports = setup.measure(f"gri: n = {nodes}", {"ours": setup.ours(Gri(nodes, "thin"), 1)}, rounds=2, warm_up=0)
        ours = reports["ours"]
        rows.append(Row(f"n = {nodes}", seconds_of(ours), facts={"extra MB": median_fact(ours, "extra_mb")}))
    return Result("gri", f"GRI forward and backward on one core, d = {DIM}", rows)
