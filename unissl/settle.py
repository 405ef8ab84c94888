"""What is settled by measurement before the first step: the number of threads, and of steps that fit into minutes."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass

import numpy as np
import torch

from unissl.assembly import assemble_on, averaged_predictions
from unissl.batches import Batches
from unissl.data import Dataset
from unissl.distributed.agreement import from_first
from unissl.distributed.gradients import average_gradients
from unissl.material import views_of_test
from unissl.run_config import RunConfig, reference_config
from unissl.train.budget import ENOUGH_ON_VECTORS, seconds_per_call, steps_within
from unissl.train.checkpoint import TrainState
from unissl.train.ema import Ema
from unissl.train.optim import build_optimizer
from unissl.train.trainer import step_at
from unissl.types import Split

CLOSING = 10.0
"""Seconds that tables, pictures and the report take after training."""


@dataclass(frozen=True)
class Beside:
    """What else has to fit into the minutes of a run."""

    started: float | None = None
    """Monotonic time at which the minutes began to count; by default now."""
    reference: Split | None = None
    """The split, where labels-only is trained on it as well."""
    refits: int = 0
    """Trainings more for an estimate by cross-validation."""
    afterwards: float = 0.0
    """Seconds that training the last stages of a backbone will take."""

    def seconds(self) -> float:
        """Used up already, or set aside for the end."""
        return self.afterwards + (0.0 if self.started is None else time.monotonic() - self.started + CLOSING)


class Rehearsal:
    """Training steps on a copy, to be timed and thrown away."""

    def __init__(self, config: RunConfig, state: TrainState, batches: Batches) -> None:
        self.batches = batches
        self.learner = copy.deepcopy(state.learner)
        self.optimizer = build_optimizer(self.learner, config.optim)
        self.ema = Ema(self.learner, config.optim.ema)

    def step(self, number: int) -> None:
        """One step, at the start of the budget, amid it or near its end by turns: methods have phases."""
        self.optimizer.zero_grad(set_to_none=True)
        place = step_at((0, 50, 95)[number % 3], 100, 1)
        torch.autograd.backward(self.learner.losses(self.batches.at(number), place).total)
        average_gradients(self.learner)
        self.optimizer.step()
        self.ema.update(self.learner)


def settle_threads(config: RunConfig, state: TrainState, batches: Batches) -> RunConfig:
    """Time a few discarded steps with all threads, half of them and so on, and keep the fastest number."""
    rehearsal, threads = Rehearsal(config, state, batches), torch.get_num_threads()
    seconds = {}
    while threads:
        torch.set_num_threads(threads)
        seconds[threads] = seconds_per_call(rehearsal.step)
        threads //= 2
    fastest = min(seconds, key=seconds.__getitem__)
    torch.set_num_threads(fastest)
    return config.model_copy(update={"machine": config.machine.model_copy(update={"threads": fastest})})


def settle_steps(
    config: RunConfig,
    state: TrainState,
    batches: Batches,
    dataset: Dataset | None = None,
    *,
    beside: Beside | None = None,
) -> RunConfig:
    """Time discarded steps of all that will be trained, and an evaluation, and freeze the number of steps that fits."""
    minutes, beside = config.train.minutes, beside or Beside()
    assert minutes is not None
    rng = torch.get_rng_state()
    rehearsal = Rehearsal(config, state, batches)
    per_step = seconds_per_call(rehearsal.step)
    if beside.reference is not None:
        plain = reference_config(config)
        per_step += seconds_per_call(
            Rehearsal(plain, *assemble_on(plain, batches.views, beside.reference, batches.device)).step
        )
    trainings = 1 + beside.refits
    tests = None if dataset is None else views_of_test(config, dataset, batches.views)
    views, some = tests or batches.views, 4 * config.batch.evaluation
    rows = np.arange(min(len(views), some))
    start = time.perf_counter()
    averaged_predictions(rehearsal.learner, rehearsal.ema.shadow, views, batches, rows)
    per_image = (time.perf_counter() - start) / len(rows)
    per_evaluation = some if tests is None else len(tests)
    pool = len(batches.pools["unlabelled"].rows)
    runs = 1 if beside.reference is None else 2
    overhead = runs * per_image * (per_evaluation * (config.train.epochs + 1) + pool)
    torch.set_rng_state(rng)
    steps = from_first(lambda: steps_within(minutes - beside.seconds() / 60, trainings * per_step, overhead))
    if config.net.frozen:
        steps = min(steps, ENOUGH_ON_VECTORS)
    return config.model_copy(update={"train": config.train.model_copy(update={"steps": steps})})
