"""What is settled by measurement before the first step: the number of threads, and how long training lasts.

Where the user gives minutes, these are shared out: vectors are made already, the last stages of a backbone get a share
of what is left, and the method as many steps as fit into the rest. Where the steps are given, the last stages may be
shortened for a time that nobody has asked for, but that a run should not take much longer than.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from unissl.batches import Batches
from unissl.data import Dataset
from unissl.distributed.collectives import broadcast_from_main
from unissl.distributed.gradients import average_gradients
from unissl.run.config import RunConfig, baseline_config
from unissl.run.distillation import MIN_EPOCHS, fit_epochs_to_time, should_distil
from unissl.run.inputs import build_test_views
from unissl.run.setup import build_training_on, predict_with_ema
from unissl.training.checkpoint import TrainState
from unissl.training.ema import Ema
from unissl.training.optim import build_optimizer
from unissl.training.timing import MAX_STEPS_ON_FEATURES, seconds_per_call, steps_within
from unissl.training.trainer import step_at
from unissl.types import Split

REPORT_SECONDS = 10.0
"""Seconds that tables, pictures and the report take after training."""
DISTIL_TIME_FRACTION = 0.4
"""Of the time that is left when vectors and maps are made: what training the last stages may take of it."""


@dataclass(frozen=True)
class ReservedTime:
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
        return self.afterwards + (0.0 if self.started is None else time.monotonic() - self.started + REPORT_SECONDS)


class StepTimer:
    """Training steps on a copy, to be timed and thrown away."""

    def __init__(self, config: RunConfig, state: TrainState, batches: Batches) -> None:
        self.batches = batches
        self.learner = copy.deepcopy(state.learner)
        self.optimizer = build_optimizer(self.learner, config.optim)
        self.ema = Ema(self.learner, config.optim.ema_decay)

    def step(self, number: int) -> None:
        """One step, at the start of the budget, amid it or near its end by turns: methods have phases."""
        self.optimizer.zero_grad(set_to_none=True)
        place = step_at((0, 50, 95)[number % 3], 100, 1)
        torch.autograd.backward(self.learner.losses(self.batches.at(number), place).total)
        average_gradients(self.learner)
        self.optimizer.step()
        self.ema.update(self.learner)


def tune_threads(config: RunConfig, state: TrainState, batches: Batches) -> RunConfig:
    """Time a few discarded steps with all threads, half of them and so on, and keep the fastest number."""
    rehearsal, threads = StepTimer(config, state, batches), torch.get_num_threads()
    seconds = {}
    while threads:
        torch.set_num_threads(threads)
        seconds[threads] = seconds_per_call(rehearsal.step)
        threads //= 2
    fastest = min(seconds, key=seconds.__getitem__)
    torch.set_num_threads(fastest)
    return config.model_copy(update={"machine": config.machine.model_copy(update={"threads": fastest})})


def plan_budget(
    config: RunConfig,
    state: TrainState,
    batches: Batches,
    dataset: Dataset,
    split: Split,
    beside: ReservedTime,
    aim: float | None,
) -> RunConfig:
    """The number of steps, where minutes are given; where ``aim`` minutes are, fewer passes of the last stages."""
    if config.train.steps is None:
        assert config.train.minutes is not None
        share = DISTIL_TIME_FRACTION * (60 * config.train.minutes - beside.seconds())
        config, afterwards = fit_epochs_to_time(config, dataset, split, batches.device, share, MIN_EPOCHS)
        return steps_from_minutes(config, state, batches, dataset, beside=replace(beside, afterwards=afterwards))
    if aim is not None and should_distil(config, len(dataset.train), split):
        method = measure(config, state, batches, dataset, beside).seconds(config.train.steps)
        config, _ = fit_epochs_to_time(
            config, dataset, split, batches.device, 60 * aim - beside.seconds() - method, 1.0
        )
    return config


def steps_from_minutes(
    config: RunConfig,
    state: TrainState,
    batches: Batches,
    dataset: Dataset | None = None,
    *,
    beside: ReservedTime | None = None,
) -> RunConfig:
    """Freeze the number of steps that fits into the minutes."""
    minutes, beside = config.train.minutes, beside or ReservedTime()
    assert minutes is not None
    cost = measure(config, state, batches, dataset, beside)
    steps = broadcast_from_main(lambda: steps_within(minutes - beside.seconds() / 60, cost.per_step, cost.overhead))
    if config.net.freeze_backbone:
        steps = min(steps, MAX_STEPS_ON_FEATURES)
    return config.model_copy(update={"train": config.train.model_copy(update={"steps": steps})})


@dataclass(frozen=True)
class Cost:
    """Seconds of one step of all that will be trained, and of evaluating it."""

    per_step: float
    overhead: float

    def seconds(self, steps: int) -> float:
        return self.overhead + steps * self.per_step


def measure(
    config: RunConfig, state: TrainState, batches: Batches, dataset: Dataset | None, beside: ReservedTime
) -> Cost:
    """Time discarded steps of the method and of what is trained beside it, and an evaluation."""
    rng = torch.get_rng_state()
    rehearsal = StepTimer(config, state, batches)
    per_step = seconds_per_call(rehearsal.step)
    if beside.reference is not None:
        plain = baseline_config(config)
        per_step += seconds_per_call(
            StepTimer(plain, *build_training_on(plain, batches.views, beside.reference, batches.device)).step
        )
    trainings = 1 + beside.refits
    tests = None if dataset is None else build_test_views(config, dataset, batches.views)
    views, some = tests or batches.views, 4 * config.batch.evaluation
    rows = np.arange(min(len(views), some))
    start = time.perf_counter()
    predict_with_ema(rehearsal.learner, rehearsal.ema.shadow, views, batches, rows)
    per_image = (time.perf_counter() - start) / len(rows)
    per_evaluation = some if tests is None else len(tests)
    pool = len(batches.subsets["unlabelled"].rows)
    runs = 1 if beside.reference is None else 2
    overhead = runs * per_image * (per_evaluation * (config.train.evaluations + 1) + pool)
    torch.set_rng_state(rng)
    return Cost(trainings * per_step, overhead)
