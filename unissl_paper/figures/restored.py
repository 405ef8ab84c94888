"""The graph of the unlabelled pool from the last checkpoint of a run, which has the heads that the exported model
lacks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unissl.errors import UserError
from unissl.evaluation.graph_diagnostics import Group, RandomWalk, embed_pool, order_of_pool, walk_of
from unissl.run.config import build_config, config_hash
from unissl.run.inputs import prepare_inputs
from unissl.run.setup import build_training, setup_device
from unissl.splits.open_set import announce_data, load_data
from unissl.training import checkpoint
from unissl.types import OOD, UNLABELLED
from unissl_paper.figures.series import FinishedRun


@dataclass(frozen=True)
class PoolGraph:
    """The pool in groups that share a graph, the true classes in the same order, and the walk's settings."""

    groups: list[Group]
    truth: npt.NDArray[np.int64]
    walk: RandomWalk
    num_classes: int

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        return np.bincount(self.truth[self.truth != OOD], minlength=self.num_classes)


def pool_graph(run: FinishedRun) -> PoolGraph:
    """Embed weak views of the pool with the live weights of the last checkpoint."""
    checkpoints = checkpoint.list_checkpoints(run.folder.checkpoints)
    if not checkpoints:
        raise UserError(f"{run.folder.path} has no checkpoint, and its model has no projection head; train it again.")
    config = build_config(run.config)
    device = setup_device(config.machine)
    announce_data(config.data, config.split)
    dataset = load_data(config.data, config.split)
    inputs = prepare_inputs(config, dataset, device)
    split = inputs.split
    truth = dataset.train.labels[split.unlabelled]
    if not len(truth) or (truth == UNLABELLED).any():
        raise UserError(f"The true classes of the pool of {run.folder.path} are unknown; choose another run.")
    state, batches = build_training(inputs)
    checkpoint.restore(checkpoints[-1], state, config_hash(config))
    order = order_of_pool(len(truth))
    groups = embed_pool(state.learner.predict, state.learner.method, batches, split.unlabelled[order], state.step)
    return PoolGraph(groups, truth[order], walk_of(state.learner.method), split.num_classes)
