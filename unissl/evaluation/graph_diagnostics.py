"""The structural consensus G of SAGE over the pool: images are nodes, G the walk probabilities between them.

In training G relates the images of one batch. Here the pool is cut into groups of that size, in a fixed order, and
each group has its own G from weak views alone. So G can be computed for any trained network: for SAGE from its
projections z and its own config, for another method from its features and SAGE's defaults.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unissl.batches import Batches
from unissl.evaluation.predictions import Forward, features_of
from unissl.methods.base import Method
from unissl.methods.sage import SAGE, SAGEConfig, unit_rows
from unissl.ops.graph import affinity_scale, relational_embedding, structural_consensus
from unissl.types import Rows

MAX_IMAGES = 20_000
"""Images of the pool that are embedded; of a larger pool a fixed random subset."""
STREAM = "diagnostics"


@dataclass(frozen=True)
class RandomWalk:
    """The parameters of G: lambda, beta, temperature, self-bias, and the anchors P if K is not d + 1."""

    ridge: float
    steps: int
    temperature: float
    self_bias: float
    anchors: Tensor | None = None


@dataclass(frozen=True)
class Group:
    """Images of one graph: their pseudo-labels (n,) and their coordinates (n, d)."""

    pseudo: Tensor
    nodes: Tensor


def walk_of(method: Method) -> RandomWalk:
    """The config of SAGE, or its defaults for another method."""
    cfg = method.cfg if isinstance(method, SAGE) else SAGEConfig()
    cfg = cfg.for_data(method.info.num_classes)
    anchors = method.anchors if isinstance(method, SAGE) and cfg.num_anchors is not None else None
    return RandomWalk(cfg.ridge, int(cfg.walk_steps or 1), float(cfg.graph_temperature or 1.0), cfg.self_bias, anchors)


def nodes_of(method: Method, features: Tensor) -> Tensor:
    """z of SAGE, of unit length if its config says so; the unit features of a method without projection."""
    if isinstance(method, SAGE) and method.project is not None:
        z: Tensor = method.project(features)
        return unit_rows(z) if method.cfg.normalise else z
    return unit_rows(features)


def order_of_pool(size: int) -> Rows:
    """Positions in the pool, which is sorted by class, in the order in which they are grouped."""
    return np.random.default_rng(0).permutation(size)[:MAX_IMAGES]


@torch.no_grad()
def embed_pool(forward: Forward, method: Method, batches: Batches, rows: Rows, step: int) -> list[Group]:
    """Weak views of these rows through the network, cut into groups of about a training batch's size."""
    was_training = method.training
    method.eval()
    groups, start = [], 0
    for part in np.array_split(rows, max(1, math.ceil(len(rows) / batches.config.unlabelled))):
        positions = slice(start, start + len(part))
        outputs = forward(batches.views("weak", part, seed=batches.seed, step=step, stream=STREAM, positions=positions))
        groups.append(Group(outputs.logits.argmax(-1), nodes_of(method, features_of(outputs))))
        start += len(part)
    method.train(was_training)
    return groups


@torch.no_grad()
def neighbours(nodes: Tensor, walk: RandomWalk) -> Tensor:
    """G (n, n) without its diagonal, rows renormalised to sum one: the weight of the other images in a vote."""
    if walk.anchors is None:
        affinity = affinity_scale(nodes.shape[1], nodes.shape[1] + 1, walk.ridge) * (nodes @ nodes.T)
    else:
        embedded = relational_embedding(nodes, walk.anchors, walk.ridge)
        affinity = embedded @ embedded.T
    affinity = affinity / walk.temperature
    affinity.diagonal().add_(walk.self_bias)
    consensus = structural_consensus(affinity, walk.steps).fill_diagonal_(0)
    return consensus / consensus.sum(1, keepdim=True).clamp_min(torch.finfo(consensus.dtype).tiny)


def votes(groups: Sequence[Group], walk: RandomWalk, num_classes: int) -> Tensor:
    """The class that the other images' pseudo-labels vote for, weighted by G, (M,)."""
    voted = []
    for group in groups:
        labels = torch.nn.functional.one_hot(group.pseudo, num_classes).to(group.nodes.dtype)
        voted.append((neighbours(group.nodes, walk) @ labels).argmax(1))
    return torch.cat(voted)
