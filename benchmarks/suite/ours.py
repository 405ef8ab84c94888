"""Training by ``unissl.run.pipeline`` on a synthetic pool, timed from the hooks of the method.

Nothing of the loop is repeated here: what is measured is what trains. A task pauses between two turns in
``Method.after_step``, which the loop calls after optimiser and EMA have been updated.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from suite.cases import StepCase, inputs_of
from unissl.batches import Batches, Promoted
from unissl.run.config import RunConfig
from unissl.run.pipeline import train_and_save, write_config_and_split
from unissl.run.setup import build_training
from unissl.run_folder import RunFolder
from unissl.training.checkpoint import TrainState
from unissl.types import Batch
from unissl.utils.progress import silenced

Clock = Callable[[], float]


@dataclass(frozen=True)
class ReadyBatches(Batches):
    """Batches without cost: the first one, repeated."""

    @classmethod
    def like(cls, batches: Batches) -> ReadyBatches:
        return cls(**{f.name: getattr(batches, f.name) for f in fields(batches)})

    @cached_property
    def first(self) -> Batch:
        return super().at(0)

    def at(self, step: int, promoted: Promoted = None) -> Batch:
        return self.first


class Spans:
    """Seconds that the training thread spends in the parts of a step, measured at the method's and optimiser's hooks.

    before: from the last step's end to the losses (waiting for data, writing the log); forward: the losses; backward;
    optimiser; ema.
    """

    def __init__(self, state: TrainState, clock: Clock = time.perf_counter) -> None:
        self.clock = clock
        self.last = clock()
        self.seconds: dict[str, float] = {}
        method: Any = state.learner.method
        losses = method.losses

        def timed_losses(*arguments: Any) -> Any:
            self.mark("before")
            result = losses(*arguments)
            self.mark("forward")
            return result

        method.losses = timed_losses
        state.optimizer.register_step_pre_hook(lambda *_: self.mark("backward"))
        state.optimizer.register_step_post_hook(lambda *_: self.mark("optimiser"))

    def mark(self, name: str) -> None:
        """End the part ``name``."""
        now = self.clock()
        self.seconds[name] = now - self.last
        self.last = now


@dataclass(frozen=True)
class OurStep:
    """A turn is one training step. Starts in the middle of the budget, after the warm-ups of the methods."""

    case: StepCase
    ready_data: bool = False
    """Repeat the same batch, to measure the cost of data."""

    def run(self, turn: Callable[..., None]) -> None:
        inputs = inputs_of(self.case)
        state, batches = build_training(inputs)
        if self.ready_data:
            batches = ReadyBatches.like(batches)
        if self.case.compiled:
            state.learner.net.compile()
        state.step = middle(inputs.config)
        pause_after_steps(state, turn)
        with tempfile.TemporaryDirectory(prefix="unissl-bench-") as root:
            folder = RunFolder(f"{root}/run")
            write_config_and_split(folder, inputs)
            with silenced(logging.ERROR):
                train_and_save(folder, inputs, state, batches)


def middle(config: RunConfig) -> int:
    """The first step after half of the evaluations."""
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
    """A turn makes the batch of one step, in the foreground."""

    case: StepCase

    def run(self, turn: Callable[..., None]) -> None:
        _, batches = build_training(inputs_of(self.case))
        turn()
        step = 0
        while True:
            batches.at(step)
            step += 1
            turn()
