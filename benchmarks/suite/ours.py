"""Our path as it is: the loop of ``unissl.run.pipeline`` on a synthetic pool, watched from the hooks of the method.

Nothing of the loop is repeated here, so what is measured is what trains. The pause between two turns lies in
``Method.after_step``, which the loop calls when optimiser and EMA have moved.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch

from unissl.batches import Batches, Promoted
from unissl.bench.cases import StepCase, config_of, synthetic
from unissl.run.config import RunConfig
from unissl.run.pipeline import train_and_save, write_config_and_split
from unissl.run.setup import build_training
from unissl.run_folder import RunFolder
from unissl.training.checkpoint import TrainState
from unissl.types import Batch

CPU = torch.device("cpu")
Clock = Callable[[], float]


@dataclass(frozen=True)
class ReadyBatches(Batches):
    """Batches that cost nothing: the first one again and again."""

    @classmethod
    def like(cls, batches: Batches) -> ReadyBatches:
        return cls(**{f.name: getattr(batches, f.name) for f in fields(batches)})

    @cached_property
    def first(self) -> Batch:
        return super().at(0)

    def at(self, step: int, joined: Promoted = None) -> Batch:
        return self.first


class Spans:
    """Seconds that the training thread spends in the parts of a step, told apart at the method's and optimiser's hooks.

    before: from the last step's end to the losses, so waiting for data and writing the log; forward: the losses;
    backward; optimiser; ema.
    """

    def __init__(self, state: TrainState, clock: Clock = time.perf_counter) -> None:
        self.clock = clock
        self.last = clock()
        self.seconds: dict[str, float] = {}
        method: Any = state.learner.method
        losses = method.losses

        def watched_losses(*arguments: Any) -> Any:
            self.mark("before")
            result = losses(*arguments)
            self.mark("forward")
            return result

        method.losses = watched_losses
        state.optimizer.register_step_pre_hook(lambda *_: self.mark("backward"))
        state.optimizer.register_step_post_hook(lambda *_: self.mark("optimiser"))

    def mark(self, name: str) -> None:
        """The part ``name`` ends now."""
        now = self.clock()
        self.seconds[name] = now - self.last
        self.last = now


@dataclass(frozen=True)
class OurStep:
    """A turn is one step of training. Starts in the middle of the budget, where the warm-ups of methods are over."""

    case: StepCase
    ready_data: bool = False
    """Serve the same batch again and again, to see what data cost."""

    def run(self, turn: Callable[..., None]) -> None:
        dataset, split = synthetic(self.case)
        config = config_of(self.case, dataset)
        state, batches = build_training(config, dataset, split, CPU)
        if self.ready_data:
            batches = ReadyBatches.like(batches)
        if self.case.compiled:
            state.learner.net.compile()
        state.step = middle(config)
        pause_after_steps(state, turn)
        with tempfile.TemporaryDirectory(prefix="unissl-bench-") as place:
            folder = RunFolder(f"{place}/run")
            write_config_and_split(folder, config, split)
            train_and_save(config, folder, dataset, split, state, batches, quiet=True)


def middle(config: RunConfig) -> int:
    """The first step of the epoch in the middle."""
    assert config.train.steps is not None
    return config.train.steps // config.train.evaluations * (config.train.evaluations // 2)


def pause_after_steps(state: TrainState, turn: Callable[..., None]) -> None:
    """Call ``turn`` at the end of every step, with the spans of the step and the seconds of the very first one."""
    spans, first_step = Spans(state), 0.0
    method: Any = state.learner.method
    after_step = method.after_step

    def then_pause(context: Any) -> None:
        nonlocal first_step
        spans.mark("ema")
        first_step = first_step or sum(spans.seconds.values())
        after_step(context)
        turn(**spans.seconds, first_step=first_step)
        spans.last = spans.clock()

    method.after_step = then_pause


@dataclass(frozen=True)
class OurViews:
    """A turn makes the batch of one step, as the data layer does, in the open."""

    case: StepCase

    def run(self, turn: Callable[..., None]) -> None:
        dataset, split = synthetic(self.case)
        _, batches = build_training(config_of(self.case, dataset), dataset, split, CPU)
        turn()
        step = 0
        while True:
            batches.at(step)
            step += 1
            turn()
