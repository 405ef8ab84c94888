"""The last stages of a backbone and a linear classifier, trained on soft labels.

The stages before them never move, so training reads their maps from the cache: of each image the clean one or one of
its augmented copies, drawn anew every time. The classifier starts as logistic regression on the soft labels, so that
the first step is not a step back.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unissl.distil.config import DistilConfig
from unissl.features.extract import FeatureMaps, FrozenBackbone, trainable_stages_of
from unissl.nets import Network
from unissl.nets.bf16 import bf16_matmul
from unissl.nets.linear_net import LinearHead
from unissl.ops import soft_regression
from unissl.ops.losses import cross_entropy
from unissl.utils.progress import Progress

WARM_UP = 20
"""Steps in which the learning rate rises."""
LABELLED_SHARE = 4
"""Unlabelled images for each labelled one in a step."""
LABEL_WEIGHT = 0.5
"""Weight of the mean loss of labelled images beside that of the others."""
START_WEIGHT = 3.0
"""Weight of a labelled image, beside an unlabelled one, in the regression that the classifier starts from."""
PREDICT_BATCH = 256

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Student:
    """A whole network from normalised images to classes: ``head(front(x))``."""

    front: FrozenBackbone
    head: LinearHead

    @torch.no_grad()
    def answer(self, maps: FeatureMaps, rows: Rows, device: torch.device) -> Tensor:
        """Logits (n, C) for the clean views of some rows, from the maps that enter the last stages."""
        stages = trainable_stages_of(self.front.net)
        blocks = [rows[start : start + PREDICT_BATCH] for start in range(0, len(rows), PREDICT_BATCH)]
        made = [self.logits(stages, select_maps(maps, block, np.zeros_like(block), device)) for block in blocks]
        return torch.cat(made).cpu()

    def logits(self, stages: nn.Sequential, entering: Tensor) -> Tensor:
        """Through the last stages, which may be in training, and the classifier."""
        vectors: Tensor = self.front.scaling(stages(entering).mean(dim=(2, 3)))
        return self.head(vectors).logits


def train_student(
    config: DistilConfig,
    front: FrozenBackbone,
    maps: FeatureMaps,
    vectors: Tensor,
    rows: Rows,
    labelled: int,
    soft: Tensor,
    seed: int,
) -> Student:
    """Train a copy of ``front`` on ``rows`` of ``maps``, the first ``labelled`` of which are the labelled images.

    ``soft`` (n, C) are the soft labels of these rows and ``vectors`` (n, D) their vectors, scaled. Equal arguments give
    equal weights, on the same number of threads.
    """
    device = next(front.parameters()).device
    front = copy.deepcopy(front)
    with torch.random.fork_rng(devices=[]):  # what is drawn here is overwritten at once
        head = LinearHead(vectors.shape[1], soft.shape[1])
    weights = torch.ones(len(rows))
    weights[:labelled] = START_WEIGHT
    with torch.no_grad():
        weight, bias = soft_regression.fit(vectors, soft, weights)
        head.head.weight.copy_(weight)
        head.head.bias.copy_(bias)
    student, soft = Student(front, head.to(device)), soft.to(device)
    stages = trainable_stages(front.net)
    optimizer = torch.optim.Adam(
        [*(p for p in stages.parameters() if p.requires_grad), *head.parameters()], lr=config.lr
    )
    draws = torch.Generator().manual_seed(seed)
    unlabelled, steps = len(rows) - labelled, distil_steps(config, len(rows) - labelled)
    order = torch.cat([torch.randperm(unlabelled, generator=draws) for _ in range(math.ceil(config.epochs) + 1)])
    with_labels = max(1, config.batch // LABELLED_SHARE)
    with bf16_matmul(stages), Progress("training the last stages", steps * config.batch) as progress:
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = config.lr * lr_factor(step, steps)
            pool = order[step * config.batch : (step + 1) * config.batch] + labelled
            chosen = torch.cat([torch.randint(labelled, (with_labels,), generator=draws), pool])
            which = torch.randint(maps.shape[1], (len(chosen),), generator=draws).numpy()
            logits = student.logits(stages, select_maps(maps, rows[chosen.numpy()], which, device))
            loss = cross_entropy(logits, soft[chosen.to(device)])
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(LABEL_WEIGHT * loss[:with_labels].mean() + loss[with_labels:].mean())
            optimizer.step()
            progress.advance(config.batch)
    stages.requires_grad_(False)
    head.requires_grad_(False)
    return student


def trainable_stages(net: Network) -> nn.Sequential:
    """The last stages, with gradients, as they were made for inference alone.

    Filters of single channels stay as they are: one weight in twenty, and on a CPU a third of the time of a step.
    """
    stages = trainable_stages_of(net).requires_grad_(True)
    for part in stages.modules():
        if isinstance(part, nn.Conv2d) and part.groups > 1:
            part.requires_grad_(False)
        if isinstance(part, nn.ReLU6):
            part.inplace = False  # what it would overwrite is wanted for the gradient
    return stages


def distil_steps(config: DistilConfig, unlabelled: int) -> int:
    """Steps that the passes over a pool come to, at least one."""
    return max(1, int(config.epochs * unlabelled / config.batch))


def lr_factor(step: int, steps: int) -> float:
    """Share of the highest learning rate: a short rise, then half a cosine down to nothing."""
    return min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / steps))


def select_maps(maps: FeatureMaps, rows: Rows, which: Rows, device: torch.device) -> Tensor:
    """Maps (n, c, h, w) of the given views of rows, stored channels last."""
    chosen = torch.from_numpy(np.ascontiguousarray(maps[rows, which]))
    return chosen.to(device, torch.get_default_dtype()).permute(0, 3, 1, 2)
