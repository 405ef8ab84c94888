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
from unissl.distributed.collectives import all_reduce_max, average_gradients, broadcast_from_main, broadcast_state
from unissl.distributed.rows import all_gather_rows
from unissl.errors import UserError
from unissl.run_folder import RunFolder
from unissl.training import checkpoint, health
from unissl.training.checkpoint import TrainState
from unissl.training.learner import Learner
from unissl.training.optim import OptimConfig, learning_rate, set_learning_rate, tail_step
from unissl.training.prefetch import Prefetch
from unissl.training.signals import Interrupted, defer_signals
from unissl.types import Losses, Prediction, Source, Step, StreamBatch
from unissl.utils.progress import Progress, log

EvalFn = Callable[[Learner, dict[str, Tensor]], tuple[dict[str, Any], npt.NDArray[np.int64]]]
"""(learner, averaged parameters) -> (metrics for metrics.jsonl, predicted classes for the health check)."""


class TrainConfig(Settings):
    steps: int | None = Field(default=None, ge=1)
    """Training steps; computed from ``minutes`` if those are given instead."""
    minutes: float | None = Field(default=None, gt=0, le=1_000_000)
    """Time budget; converted to ``steps`` before the start and without effect from then on."""
    cv_folds: int = Field(default=4, ge=0)
    """Without test images: folds of a cross-validation over the labels, each an additional training of the same length;
    0 or 1 for none."""
    evaluations: int = Field(default=20, ge=1, le=1_000_000)
    """Number of evaluations, at equal distances and the last at the end."""
    method_periods: int = Field(default=20, ge=1)
    """Equal parts of the budget after which methods re-estimate what they estimate once per epoch of their papers
    (ACR, CaliMatch, SimPro). It does not depend on ``evaluations``."""
    diagnostics: bool = False
    """At each evaluation also record the accuracy of pseudo-labels and relations of the unlabelled pool, if its true
    classes are known; the figures of the paper need it."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the network in training; heads, losses, weights and predictions stay in float32. bfloat16 is for
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
    """What the hooks of a method may use (``methods.base.Context``)."""

    learner: Learner
    shadow: dict[str, Tensor]
    batches: Batches
    step: Step

    def scan(
        self, source: Source, weights: Literal["ema", "live"] = "ema", view: str = "weak"
    ) -> Iterator[tuple[StreamBatch, Prediction]]:
        """Every image of a source once, with its prediction by the averaged or the live parameters."""
        shadow = self.shadow if weights == "ema" else None
        for local in self.batches.scan_shares(source, view, self.step.iteration, self.learner.method.promoted()):
            pred = self.learner.predict(local.views[view], shadow)
            parts = [part for part in (pred.logits, pred.features, pred.outlier) if part is not None]
            yield whole({source: local})[source], Prediction(*all_gather_rows(parts, [len(local)] * len(parts)))


@dataclass
class Trainer:
    """Trains a :class:`TrainState` to the end of its budget.

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
    class_names: Sequence[str] = ()
    prefetch: bool = True
    """Prepare the next batch while a step runs."""
    selected: list[float] = field(default_factory=list)
    """Logged fractions of pseudo-labels in use since the last evaluation."""
    warned: set[str] = field(default_factory=set)
    """Kinds of warnings that were logged already."""

    def run(self) -> None:
        total = self.config.steps
        assert total is not None
        evaluations = period_ends(total, self.config.evaluations)
        period_starts = period_ends(total, self.config.method_periods) | {0}
        self.restore_warnings(total)
        self.finite = torch.tensor(True)
        self.started = time.monotonic() - self.state.seconds
        self.state.learner.train()
        with (
            defer_signals() as stop,
            Prefetch(self.batches, total, self.prefetch) as self.upcoming,
            Progress(self.title, total, self.state.step, unit="steps") as self.progress,
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
                stop_signal = all_reduce_max(stop.signal or 0)  # read once: another signal may come at any moment
                if self.checkpoint_due(evaluations) or stop_signal:
                    self.save()
                if stop_signal:
                    raise Interrupted(stop_signal, self.state.step)
        if late_signal := all_reduce_max(stop.signal or 0):  # one that came after the last check
            raise Interrupted(late_signal, self.state.step)

    def restore_warnings(self, total: int) -> None:
        """Read warnings, and the selection since the last evaluation, to warn as an unbroken run would."""
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
        state.ema.update(state.learner, tail_step(self.optim, step.iteration, step.total))
        # Stays a tensor: reading its value at every step would make the device wait.
        self.finite = self.finite.to(total.device) & torch.isfinite(total.detach())
        state.step += 1
        return losses

    def log(self, step: Step, losses: Losses) -> None:
        """Append a line to metrics.jsonl every ``log_every`` steps; raises if a loss was not finite."""
        done = self.state.step
        if done % self.config.log_every and done != step.total:
            self.progress.advance()
            return
        terms = {name: term.item() for name, term in losses.terms.items()}
        self.check_finite(terms)
        logs = {name: value.item() for name, value in losses.logs.items()}
        rate = learning_rate(self.optim, step.iteration, step.total)
        line = {"kind": "train", "step": done, "loss": terms, "logs": logs, "lr": rate}
        self.folder.append_metrics(line | self.clock())
        shown = {"loss": f"{losses.total.item():.3f}"}
        if "selected" in logs:
            self.selected.append(logs["selected"])
            shown["pseudo-labels used"] = f"{logs['selected']:.0%}"
        self.progress.advance(values=shown)

    def check_finite(self, terms: dict[str, float]) -> None:
        if bool(self.finite):
            return
        bad = [name for name, value in terms.items() if not np.isfinite(value)] or ["total"]
        saved = "there is no checkpoint yet"
        if checkpoint.list_checkpoints(self.folder.checkpoints):
            saved = f"the last good checkpoint is in {self.folder.checkpoints}"
        raise NonFiniteLoss(
            f"The loss '{', '.join(bad)}' is no longer a finite number at step {self.state.step}; training stopped and "
            f"{saved}. Start again with a lower optim.lr."
        )

    def evaluate_and_log(self, step: Step) -> None:
        metrics, predicted = self.evaluate(self.state.learner, self.state.ema.shadow)
        line = {"kind": "eval", "step": self.state.step, **metrics}
        self.folder.append_metrics(line | self.clock())
        if "accuracy" in metrics:
            log.info(f"{self.title}: step {self.state.step}, accuracy {metrics['accuracy']:.4f}")
            self.progress.advance(0, {"accuracy": f"{metrics['accuracy']:.1%}"})
        if step.fraction >= health.GRACE and len(predicted):
            num_classes = self.state.learner.method.info.num_classes
            names = self.class_names or [str(number) for number in range(num_classes)]
            self.warn("collapse", health.collapse(predicted, names))
            mean_selected = float(np.mean(self.selected)) if self.selected else None
            self.warn("selection", health.nothing_selected(mean_selected))
        self.selected = []

    def warn(self, about: str, message: str | None) -> None:
        """Log and record a warning, once of each kind."""
        if message is None or about in self.warned:
            return
        self.warned.add(about)
        self.folder.append_metrics({"kind": "warning", "step": self.state.step, "about": about, "message": message})
        log.warning("%s", message)

    def checkpoint_due(self, evaluations: frozenset[int]) -> bool:
        """Whether to write a checkpoint now. After the last step always, so that later stages, if interrupted, do not
        cost training again."""
        every, done = self.config.checkpoint_every, self.state.step
        return done in evaluations if every is None else done % every == 0 or done == self.config.steps

    def save(self) -> None:
        """Write a checkpoint; raises instead if a parameter is not finite."""
        for parameter in self.state.learner.parameters():
            self.finite = self.finite & torch.isfinite(parameter.detach()).all()
        self.check_finite({})
        self.state.seconds = time.monotonic() - self.started
        broadcast_from_main(
            lambda: checkpoint.save(self.folder.checkpoints, self.state, self.config_hash, self.folder.metrics_size())
        )

    def clock(self) -> dict[str, float]:
        return {"seconds": round(time.monotonic() - self.started, 3)}
