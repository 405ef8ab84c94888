"""The training loop. The order of this file is the order of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from unissl.batches import Batches, whole
from unissl.config import Settings
from unissl.distributed.collectives import all_reduce_max, broadcast_from_main
from unissl.distributed.gradients import average_gradients, broadcast_state
from unissl.distributed.rows import all_gather_rows, cat, split_local
from unissl.errors import UserError
from unissl.run_folder import RunFolder
from unissl.training import checkpoint, health
from unissl.training.checkpoint import TrainState
from unissl.training.learner import Learner
from unissl.training.optim import OptimConfig, learning_rate, set_learning_rate
from unissl.training.prefetch import Prefetch
from unissl.training.progress import TrainingProgress
from unissl.training.signals import Interrupted, defer_signals
from unissl.types import Losses, Prediction, Source, Step, StreamBatch

EvalFn = Callable[[Learner, dict[str, Tensor]], tuple[dict[str, Any], npt.NDArray[np.int64]]]
"""(learner, averaged parameters): metrics for the record, and predicted classes for the health check."""


class TrainConfig(Settings):
    steps: int | None = Field(default=None, ge=1)
    """Training steps; found from ``minutes`` where those are given instead."""
    minutes: float | None = Field(default=None, gt=0)
    """Time budget; turned into ``steps`` before the start and only a note from then on."""
    cv_folds: int = Field(default=4, ge=0)
    """Without test images: parts the labels are cut into for an estimate by cross-validation, each left out of one more
    training of the same length; 0 or 1 for no estimate."""
    evaluations: int = Field(default=20, ge=1)
    """Number of evaluations, at equal distances and the last at the end."""
    method_periods: int = Field(default=20, ge=1)
    """Equal parts of the budget after which methods re-estimate what they estimate once per epoch of their papers
    (ACR, CaliMatch, SimPro). It does not depend on ``evaluations``."""
    diagnostics: bool = False
    """At each evaluation also record how good pseudo-labels and relations in the pool are, where its truth is known;
    the figures of the paper need it."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Numbers in which the network is trained; heads, losses, weights and predictions stay in float32. bfloat16 is for
    GPUs."""
    log_every: int = Field(default=10, ge=1)
    """Steps between two lines of training metrics."""
    checkpoint_every: int | None = Field(default=None, ge=1)
    """Steps between two checkpoints; by default one per evaluation."""


class NonFiniteLoss(UserError):
    """A loss became infinite or not a number."""


def step_at(iteration: int, total: int, periods: int) -> Step:
    """Position of an iteration in the budget; period p covers the iterations of [p T / P, (p+1) T / P)."""
    return Step(iteration, total, iteration * periods // total, periods)


def period_ends(total: int, periods: int) -> frozenset[int]:
    """Numbers of finished steps after which a period ends; fewer than ``periods`` if there are fewer steps."""
    return frozenset(-(-(period + 1) * total // periods) for period in range(periods))


@dataclass
class TrainerContext:
    """What the hooks of a method may ask for (``methods.base.Context``)."""

    learner: Learner
    shadow: dict[str, Tensor]
    batches: Batches
    step: Step

    def scan(
        self, source: Source, weights: Literal["ema", "live"] = "ema", view: str = "weak"
    ) -> Iterator[tuple[StreamBatch, Prediction]]:
        shadow = self.shadow if weights == "ema" else None
        for share in self.batches.scan_shares(source, view, self.step.iteration, self.learner.method.promoted()):
            said = [self.learner.predict(images, shadow) for images in split_local(share.views[view], len(share))]
            yield whole({source: share})[source], together(said, len(share))


def together(said: Sequence[Prediction], total: int) -> Prediction:
    """What all processes say about ``total`` images, from what this one says about those of each of its shards."""
    parts = [cat([one.logits for one in said]), cat([one.features for one in said])]
    if scores := [one.outlier for one in said if one.outlier is not None]:
        parts.append(cat(scores))
    return Prediction(*all_gather_rows(parts, [total] * len(parts)))


@dataclass
class Trainer:
    """Moves a :class:`TrainState` to the end of its budget.

    ``evaluate`` is called ``config.evaluations`` times; if it predicts no classes, the health check is skipped.
    """

    state: TrainState
    batches: Batches
    config: TrainConfig
    optim: OptimConfig
    folder: RunFolder
    config_hash: str
    evaluate: EvalFn
    title: str = "training"
    quiet: bool = False
    prefetch: bool = True
    """Make the next batch while a step runs."""
    selected: list[float] = field(default_factory=list)
    """Logged shares of pseudo-labels in use since the last evaluation."""
    warned: set[str] = field(default_factory=set)
    """What the run was warned of already."""

    def run(self) -> None:
        total = self.config.steps
        assert total is not None
        evaluations = period_ends(total, self.config.evaluations)
        period_starts = period_ends(total, self.config.method_periods) | {0}
        self.recall_record(total)
        self.finite = torch.tensor(True)
        self.started = time.monotonic() - self.state.seconds
        self.state.learner.train()
        with (
            defer_signals() as stop,
            Prefetch(self.batches, total, self.prefetch) as self.upcoming,
            TrainingProgress(f"{self.title}", total, self.state.step, self.quiet) as self.progress,
        ):
            while self.state.step < total:
                step = step_at(self.state.step, total, self.config.method_periods)
                context = TrainerContext(self.state.learner, self.state.ema.shadow, self.batches, step)
                if step.iteration in period_starts:
                    broadcast_state(self.state.learner.state_dict(), self.state.ema.shadow)
                    self.state.learner.method.on_period_start(context)  # plug-in 1
                losses = self.one_step(step)
                self.state.learner.method.after_step(context)
                self.log(step, losses)
                if self.state.step in evaluations:
                    self.evaluate_and_log(step)
                asked_to_stop = (
                    all_reduce_max(stop.signal or 0) or None
                )  # read once: a signal may come between two looks
                if self.checkpoint_due(evaluations) or asked_to_stop is not None:
                    self.save()
                if asked_to_stop is not None:
                    raise Interrupted(asked_to_stop, self.state.step)
        if late := all_reduce_max(stop.signal or 0):  # one that came after the last look
            raise Interrupted(late, self.state.step)

    def recall_record(self, total: int) -> None:
        """Read the warnings and the selection since the last evaluation, so that a resumed run warns as an unbroken one would."""
        last = max(done for done in (0, *period_ends(total, self.config.evaluations)) if done <= self.state.step)
        for line in self.folder.read_metrics():
            if line["kind"] == "warning":
                self.warned.add(line["about"])
            elif line["kind"] == "train" and line["step"] > last and "selected" in line["logs"]:
                self.selected.append(line["logs"]["selected"])

    def one_step(self, step: Step) -> Losses:
        """Views, losses, gradients, optimiser, EMA."""
        state = self.state
        set_learning_rate(state.optimizer, learning_rate(self.optim, step.iteration, step.total))
        batch = self.upcoming.at(step.iteration, state.learner.method.promoted())
        losses = state.learner.losses(batch, step)  # plug-in 2
        total = losses.total
        state.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(total)
        average_gradients(state.learner)
        state.optimizer.step()
        state.ema.update(state.learner)
        # Kept as a tensor: asking for its value at every step would make the device wait.
        self.finite = self.finite.to(total.device) & torch.isfinite(total.detach())
        state.step += 1
        return losses

    def log(self, step: Step, losses: Losses) -> None:
        """One line every ``log_every`` steps; stops the run when a loss was not finite."""
        done = self.state.step
        if done % self.config.log_every and done != step.total:
            self.progress.advance(done)
            return
        terms = {name: term.item() for name, term in losses.terms.items()}
        self.check_finite(terms)
        logs = {name: value.item() for name, value in losses.logs.items()}
        rate = learning_rate(self.optim, step.iteration, step.total)
        line = {"kind": "train", "step": done, "loss": terms, "logs": logs, "lr": rate}
        self.folder.append_metrics(line | self.clock())
        if "selected" in logs:
            self.selected.append(logs["selected"])
        self.progress.advance(done, terms | logs)

    def check_finite(self, terms: dict[str, float]) -> None:
        if bool(self.finite):
            return
        bad = [name for name, value in terms.items() if not np.isfinite(value)] or ["total"]
        kept = "there is no checkpoint yet"
        if checkpoint.list_checkpoints(self.folder.checkpoints):
            kept = f"the last good checkpoint is in {self.folder.checkpoints}"
        raise NonFiniteLoss(
            f"The loss '{', '.join(bad)}' is no longer a finite number at step {self.state.step}; training stopped and "
            f"{kept}. Start again with a lower optim.lr."
        )

    def evaluate_and_log(self, step: Step) -> None:
        metrics, predicted = self.evaluate(self.state.learner, self.state.ema.shadow)
        line = {"kind": "eval", "step": self.state.step, **metrics}
        self.folder.append_metrics(line | self.clock())
        if "accuracy" in metrics:
            self.progress.say(f"{self.title}: step {self.state.step}, accuracy {metrics['accuracy']:.4f}")
        if step.fraction >= health.GRACE and len(predicted):
            self.warn("collapse", health.collapse(predicted, self.state.learner.method.info.num_classes))
            mean_selected = float(np.mean(self.selected)) if self.selected else None
            self.warn("selection", health.nothing_selected(mean_selected))
        self.selected = []

    def warn(self, about: str, message: str | None) -> None:
        """Say and record a warning, once for each thing to be warned of."""
        if message is None or about in self.warned:
            return
        self.warned.add(about)
        self.folder.append_metrics({"kind": "warning", "step": self.state.step, "about": about, "message": message})
        self.progress.say(f"warning: {message}")

    def checkpoint_due(self, evaluations: frozenset[int]) -> bool:
        """The last step always is: what comes after training must not cost training again when it is cut off."""
        every = self.config.checkpoint_every
        done = self.state.step
        return done in evaluations if every is None else done % every == 0 or done == self.config.steps

    def save(self) -> None:
        """Write a checkpoint, but never one that holds numbers that are not finite."""
        for parameter in self.state.learner.parameters():
            self.finite = self.finite & torch.isfinite(parameter.detach()).all()
        self.check_finite({})
        self.state.seconds = time.monotonic() - self.started
        broadcast_from_main(
            lambda: checkpoint.save(self.folder.checkpoints, self.state, self.config_hash, self.folder.metrics_size())
        )

    def clock(self) -> dict[str, float]:
        return {"seconds": round(time.monotonic() - self.started, 3)}
