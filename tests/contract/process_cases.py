"""Every method trained for twenty steps by the real trainer, on as many processes as there are."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from curves import CASES, config_of, one_thread_in
from method_cases import OPTIM, make_batches, make_split, make_state

from unissl.distributed.batch_norm import with_global_batch_norm
from unissl.distributed.collectives import broadcast_from_main
from unissl.methods.base import MethodConfig
from unissl.methods.registry import get_method
from unissl.run_folder import RunFolder
from unissl.training.trainer import TrainConfig, Trainer

__all__ = ["CASES", "STEPS", "TOLERANCE", "Trained", "relative", "trained", "trained_all", "trained_on_300_classes"]

STEPS, CLASSES, TOLERANCE = 20, 4, 1e-9
PHASES: dict[str, dict[str, Any]] = {
    # Images are chosen, and join the labelled set, several times within twenty steps.
    "cpg": {"threshold": 0.2, "agreement": 0.3, "min_votes_fraction": 0.1, "update_every": 0.2, "min_visits": 0.5},
    "cgmatch": {"momentum": 0.5, "warm_up": 0.3},
    "cdmad": {"threshold": 0.3, "debias_from": 0.2},
    "acr": {"threshold": 0.3},
    "simpro": {"threshold": 0.3},
    "ssb": {"threshold": 0.3, "warm_up": 0.3, "negative_threshold": 0.4},
}
"""Settings that bring all phases of a method into so few steps, where those of the golden curves do not."""

Trained = tuple[dict[str, list[float]], dict[str, torch.Tensor]]
"""Losses by name, one for each step, and the learner's and the averaged tensors at the end."""


def settings_of(case: str) -> MethodConfig:
    config = config_of(case)
    return type(config)(**{**config.model_dump(), **PHASES.get(case, {})})


def trained(case: str, num_classes: int = CLASSES) -> Trained:
    config, split = settings_of(case), make_split(num_classes)
    with tempfile.TemporaryDirectory() as place:
        state = make_state(config, split, net="wrn-10-1" if get_method(config.name).taps else "small")
        with_global_batch_norm(state.learner.net)
        folder = RunFolder(place)
        Trainer(
            state=state,
            batches=make_batches(config, split),
            config=TrainConfig(steps=STEPS, evaluations=4, log_every=1),
            optim=OPTIM,
            folder=folder,
            config_hash="",
            evaluate=lambda learner, shadow: ({}, np.zeros(0, dtype=np.int64)),
        ).run()
        lines = broadcast_from_main(folder.read_metrics)
    rows = [line["loss"] for line in lines if line["kind"] == "train"]
    losses = {name: [row[name] for row in rows] for name in rows[0]}
    tensors = {**state.learner.state_dict(), **{f"ema.{name}": value for name, value in state.ema.shadow.items()}}
    return losses, tensors


def trained_all(cases: Sequence[str] = CASES, dtype: torch.dtype = torch.float64) -> dict[str, Trained]:
    """By case; in float64, since training amplifies the rounding of another order of addition."""
    with one_thread_in(dtype):
        return {case: trained(case) for case in cases}


def trained_on_300_classes(case: str) -> Trained:
    """More classes than a byte can number."""
    with one_thread_in(torch.float64):
        return trained(case, num_classes=300)


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest difference between two tensors, as a fraction of the largest number in them, or of 1e-6 for a tensor that
    holds rounding errors only (a bias before BatchNorm, which starts at 0 and has no gradient)."""
    one, other = one.double(), other.double()
    return float((one - other).abs().max() / one.abs().max().clamp(min=1e-6)) if one.numel() else 0.0
