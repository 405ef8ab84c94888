"""After training: the readout of a run (:mod:`unissl.evaluation.readout`). Every process of a group computes it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from unissl.batches import Batches
from unissl.evaluation.readout import Evidence, choose_readout
from unissl.ops.consensus import MAX_POOL
from unissl.ops.linear import LinearClassifier
from unissl.run.config import RunConfig
from unissl.run.setup import learnt_features
from unissl.training.checkpoint import TrainState
from unissl.types import Split

log = logging.getLogger(__name__)

WEIGHT, BIAS = "net.head.weight", "net.head.bias"
"""Names of the head's parameters in the learner."""


@dataclass(frozen=True)
class Readout:
    """Averaged parameters with the head refitted to the consensus, and the evidence for or against it."""

    consensus: dict[str, Tensor]
    evidence: Evidence

    def to_summary(self) -> dict[str, Any]:
        return {"classifier": "consensus" if self.evidence.favours_consensus else "head", **self.evidence.to_summary()}


def refit_head(config: RunConfig, state: TrainState, batches: Batches, split: Split) -> Readout | None:
    """The refitted head of a trained network; None if the head is shipped as it is, or if there is no pool."""
    if config.method.readout == "head" or not len(split.unlabelled):
        return None
    if len(split.unlabelled) > MAX_POOL:
        log.warning("The consensus readout is for pools of up to %s images; the head is shipped.", f"{MAX_POOL:,}")
        return None
    shadow = state.ema.shadow
    labelled, pool = (learnt_features(state, batches, rows) for rows in (split.labelled, split.unlabelled))
    head = LinearClassifier(shadow[WEIGHT].cpu(), shadow[BIAS].cpu())
    classifier, evidence = choose_readout(head, labelled, split.labels, pool)
    refitted = {WEIGHT: classifier.weight.to(shadow[WEIGHT]), BIAS: classifier.bias.to(shadow[BIAS])}
    return Readout({**shadow, **refitted}, evidence)


def shipped_parameters(state: TrainState, readout: Readout | None) -> dict[str, Tensor]:
    """The averaged parameters that predict, with the head that the evidence favours."""
    if readout is None or not readout.evidence.favours_consensus:
        return state.ema.shadow
    return readout.consensus
