"""Features, and images without a frozen backbone: trains a learner, and restores it from stored arrays."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unissl.config import to_tree
from unissl.estimators.inputs import ImageInputs, Inputs, inputs_of
from unissl.evaluation.predictions import predict_rows
from unissl.run.budget import steps_from_minutes
from unissl.run.config import RunConfig, build_config
from unissl.run.fit import fit
from unissl.run.readout import refit_head, shipped_parameters
from unissl.run.setup import build_training_on, predict_with_ema, setup_device
from unissl.run_folder import RunFolder
from unissl.training.learner import Learner
from unissl.training.oom import memory_errors
from unissl.training.signals import Interrupted
from unissl.types import Floats, Split

if TYPE_CHECKING:
    from unissl.estimators.photos import FittedModel

Rows = npt.NDArray[Any]


class Fit(NamedTuple):
    """The fitted classifier, the class of each row (n,), the lines of metrics and the number of steps."""

    fitted: FittedLearner | FittedModel
    classes: npt.NDArray[np.int64]
    metrics: list[dict[str, Any]]
    steps: int


@dataclass
class FittedLearner:
    """A learner with its averaged parameters, and everything needed to feed it and to build it again."""

    config: RunConfig
    split: Split
    inputs: Inputs
    learner: Learner

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """Height, width and channels of the images; None for features."""
        return self.inputs.shape if isinstance(self.inputs, ImageInputs) else None

    def predict_proba(self, rows: Rows) -> Floats:
        views = self.inputs.views(rows, self.config, next(self.learner.parameters()).device)
        return predict_rows(self.learner.predict, views, batch_size=self.config.batch.evaluation).probs

    def __getstate__(self) -> dict[str, Any]:
        """Plain values and arrays, which any version of torch can load."""
        weights = {name: value.cpu().numpy() for name, value in self.learner.state_dict().items()}
        return {"config": to_tree(self.config), "split": self.split, "inputs": self.inputs, "weights": weights}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restored on the CPU, since the training device may be missing."""
        self.config, self.split, self.inputs = build_config(state["config"]), state["split"], state["inputs"]
        device = torch.device("cpu")
        with forked_generator(device):
            state_on_cpu, _ = build_training_on(self.config, self.inputs.empty_views(self.config), self.split, device)
        self.learner = state_on_cpu.learner
        self.learner.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in state["weights"].items()})


def train(config: RunConfig, rows: Rows, split: Split) -> Fit:
    """Train to the end of the budget."""
    device = setup_device(config.machine)
    inputs = inputs_of(rows, config)
    views = inputs.views(rows, config, device)
    with (
        forked_generator(device),
        tempfile.TemporaryDirectory(prefix="unissl-") as temporary,
        raise_interrupts(),
        memory_errors(config.batch),
    ):
        state, batches = build_training_on(config, views, split, device)
        if config.train.steps is None:
            config = steps_from_minutes(config, state, batches)
        folder = RunFolder(temporary)
        eval_rows = split.unlabelled[: 4 * config.batch.evaluation]

        def eval_fn(learner: Learner, shadow: Mapping[str, Tensor]) -> tuple[dict[str, Any], Rows]:
            return {}, predict_with_ema(learner, shadow, views, batches, eval_rows).classes

        fit(config, state, batches, folder, eval_fn)
        metrics = folder.read_metrics()
        parameters = shipped_parameters(state, refit_head(config, state, batches, split))
    state.learner.load_state_dict(parameters, strict=False)  # buffers are not averaged
    fitted = FittedLearner(config, split, inputs, state.learner)
    assert config.train.steps is not None
    return Fit(fitted, fitted.predict_proba(rows).argmax(1), metrics, config.train.steps)


@contextmanager
def forked_generator(device: torch.device) -> Iterator[None]:
    """Training seeds torch's global generator; the caller's random state is restored."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


@contextmanager
def raise_interrupts() -> Iterator[None]:
    """A signal raises what ends the caller's loop over fits too, as with any other estimator."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None  # without advice to continue in a folder that was temporary
    except Interrupted as stop:
        if stop.exit_code == 128 + signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(stop.exit_code) from None
