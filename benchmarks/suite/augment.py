"""(b) Views per second on one core: our batched operations against Pillow, image after image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from statistics import median

import torch

from suite.cases import MEAN, STD, random_images
from suite.measure import Result, Row, seconds_of
from suite.plain_views import plain_batch, plain_bytes
from suite.setup import Setup
from suite.worker import repeat
from unissl.augment import AugmentConfig, make_view, normalise


@dataclass(frozen=True)
class ViewCase:
    """``count`` images of ``size`` x ``size`` to one view each: bytes to bytes, or to the floats a network takes."""

    view: str
    size: int
    count: int
    floats: bool

    @property
    def label(self) -> str:
        return f"{self.view}, {self.size} px, to {'floats' if self.floats else 'bytes'}"


@dataclass(frozen=True)
class OurViewsOf:
    case: ViewCase

    def run(self, turn: Callable[..., None]) -> None:
        images = torch.from_numpy(random_images(self.case.count, self.case.size))
        steps = iter(range(10**9))

        def call() -> None:
            view = make_view(self.case.view, images, AugmentConfig(), seed=0, step=next(steps), stream="unlabelled")
            if self.case.floats:
                normalise(view, MEAN, STD)

        repeat(turn, call)


@dataclass(frozen=True)
class PlainViewsOf:
    case: ViewCase

    def run(self, turn: Callable[..., None]) -> None:
        images, random = random_images(self.case.count, self.case.size), Random(0)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

        def call() -> None:
            if self.case.floats:
                plain_batch(self.case.view, images, mean, std, random)
            else:
                plain_bytes(self.case.view, images, random)

        repeat(turn, call)


def cases(quick: bool) -> list[ViewCase]:
    counts = {32: 32} if quick else {32: 448, 96: 448, 224: 128}
    return [
        ViewCase(view, size, count, floats)
        for size, count in counts.items()
        for view in ("weak", "strong")
        for floats in (False, True)
    ]


def augment(setup: Setup) -> Result:
    rows = []
    for case in cases(setup.quick):
        sides = {"ours": setup.ours(OurViewsOf(case), 1), "plain": setup.plain(PlainViewsOf(case), 1)}
        reports = setup.measure(f"augment: {case.label}", sides, warm_up=2)
        ours, plain = seconds_of(reports["ours"]), seconds_of(reports["plain"])
        facts = {"views/s": case.count / median(ours), "plain views/s": case.count / median(plain)}
        rows.append(Row(case.label, ours, plain, facts))
    return Result("augment", "Augmentation on one core", rows)
