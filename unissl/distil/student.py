"""The student: the last stages of a backbone and a linear classifier, trained on soft labels.

The stages before them stay frozen, so training reads their maps from the cache: of each image, the clean view or one of
its augmented copies, drawn at random in every step. The classifier starts from a logistic regression on the soft
labels, so the student starts at the accuracy of a linear classifier.
"""

from __future__ import annotations

import copy
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unissl.distil.config import DistilConfig
from unissl.distil.teacher import balance_weights
from unissl.features import FeatureMaps, FrozenBackbone, tail_stages
from unissl.nets import Network
from unissl.nets.bf16 import bf16_matmul
from unissl.nets.heads import LinearHead
from unissl.ops import soft_regression
from unissl.ops.losses import cross_entropy
from unissl.types import Rows
from unissl.utils.mmap_rows import take_rows
from unissl.utils.optimizers import Adam
from unissl.utils.progress import Progress

WARM_UP = 20
"""Steps of learning-rate warm-up."""
LABELLED_RATIO = 4
"""Unlabelled images for each labelled one in a step."""
LABEL_WEIGHT = 0.5
"""Weight of the mean loss of labelled images, relative to that of unlabelled ones."""
START_WEIGHT = 3.0
"""Weight of a labelled image, relative to an unlabelled one, in the regression that the classifier starts from."""
PREDICT_BATCH = 256


@dataclass(frozen=True)
class DistilSet:
    """The n images that a student is trained on."""

    rows: Rows
    """(n,) their rows in the table of maps."""
    is_labelled: npt.NDArray[np.bool_]
    """(n,) whether an image has a given label."""
    soft_labels: Tensor
    """(n, C) class probabilities of the teacher; one-hot for given labels."""
    features: Tensor
    """(n, D) scaled features of their clean views."""

    @cached_property
    def weights(self) -> Tensor:
        """(n,) weights of the images, which balance the classes of the pool."""
        return balance_weights(self.soft_labels)


@dataclass(frozen=True)
class Student:
    """A whole network from normalised images to classes: ``head(front(x))``."""

    front: FrozenBackbone
    head: LinearHead
    start: LinearHead | None = None
    """The linear classifier on frozen features that fine-tuning started from; None where there was no fine-tuning."""

    @property
    def fine_tuned(self) -> bool:
        """Whether the last stages were trained; else only the classifier is the student's own."""
        return self.start is not None

    @torch.no_grad()
    def predict_logits(self, maps: FeatureMaps, rows: Rows, device: torch.device) -> Tensor:
        """Logits (n, C) for the clean views of some rows, from the maps that enter the last stages."""
        stages = tail_stages(self.front.net)
        blocks = [rows[start : start + PREDICT_BATCH] for start in range(0, len(rows), PREDICT_BATCH)]
        logits = [self.logits(stages, select_maps(maps, block, np.zeros_like(block), device)) for block in blocks]
        return torch.cat(logits).cpu()

    def logits(self, stages: nn.Sequential, inner: Tensor) -> Tensor:
        """Logits (n, C) from maps (n, c, h, w), through the last stages and the classifier."""
        features: Tensor = self.front.scaling(stages(inner).mean(dim=(2, 3)))
        return self.head(features).logits


def train_student(
    config: DistilConfig,
    front: FrozenBackbone,
    maps: FeatureMaps,
    data: DistilSet,
    seed: int,
    *,
    bf16: bool | None = None,
) -> Student:
    """Train the last stages of a copy of ``front`` on the images of ``data``, read from ``maps`` (N, V, h, w, c).

    Equal arguments give equal weights, on the same number of threads.
    """
    device = next(front.parameters()).device
    front = copy.deepcopy(front)
    start = linear_head(data).to(device)
    student, targets = Student(front, copy.deepcopy(start), start.requires_grad_(False)), data.soft_labels.to(device)
    weights = data.weights.to(device)
    stages = trainable_stages(front.net)
    trained = [parameter for parameter in stages.parameters() if parameter.requires_grad]
    optimizer = Adam([*trained, *student.head.parameters()], lr=config.lr)
    draws = torch.Generator().manual_seed(seed)
    labelled, unlabelled = (torch.from_numpy(np.flatnonzero(mask)) for mask in (data.is_labelled, ~data.is_labelled))
    steps = distil_steps(config, len(unlabelled))
    epochs = [torch.randperm(len(unlabelled), generator=draws) for _ in range(math.ceil(config.epochs) + 1)]
    order = unlabelled[torch.cat(epochs)]
    num_labelled = max(1, config.batch // LABELLED_RATIO)
    with tail_precision(front.net, stages, bf16), Progress("distillation", steps * config.batch) as progress:
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = config.lr * lr_factor(step, steps)
            with_label = labelled[torch.randint(len(labelled), (num_labelled,), generator=draws)]
            batch = torch.cat([with_label, order[step * config.batch : (step + 1) * config.batch]])
            views = torch.randint(maps.shape[1], (len(batch),), generator=draws).numpy()
            logits = student.logits(stages, select_maps(maps, data.rows[batch.numpy()], views, device))
            loss = cross_entropy(logits, targets[batch.to(device)]) * weights[batch.to(device)]
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(LABEL_WEIGHT * loss[:num_labelled].mean() + loss[num_labelled:].mean())
            optimizer.step()
            progress.advance(config.batch)
    stages.requires_grad_(False)
    student.head.requires_grad_(False)
    return student


def linear_head(data: DistilSet) -> LinearHead:
    """Logistic regression on the soft labels."""
    with torch.random.fork_rng(devices=[]):  # its random weights are overwritten at once
        head = LinearHead(data.features.shape[1], data.soft_labels.shape[1])
    weights = data.weights.clone()
    weights[torch.from_numpy(data.is_labelled)] *= START_WEIGHT
    with torch.no_grad():
        weight, bias = soft_regression.fit(data.features, data.soft_labels, weights)
        head.head.weight.copy_(weight)
        head.head.bias.copy_(bias)
    return head


def trainable_stages(net: Network) -> nn.Sequential:
    """The last stages of ``net``, with gradients for all layers but those that the backbone keeps frozen."""
    assert net.backbone is not None
    stages = tail_stages(net).requires_grad_(True)
    for layer in stages.modules():
        if net.backbone.stays_frozen(layer):
            layer.requires_grad_(False)
        if getattr(layer, "inplace", False):
            layer.inplace = False  # type: ignore[assignment]  # the gradient needs the input that it would overwrite
    return stages


def tail_precision(net: Network, stages: nn.Module, bf16: bool | None) -> AbstractContextManager[None]:
    """The context in which the last stages are trained: bfloat16 products where that is safe for the backbone."""
    return bf16_matmul(stages, bf16) if net.backbone is not None and net.backbone.bf16_safe else nullcontext()


def distil_steps(config: DistilConfig, num_unlabelled: int) -> int:
    """Steps of the passes over the pool, at least one."""
    return max(1, int(config.epochs * num_unlabelled / config.batch))


def lr_factor(step: int, steps: int) -> float:
    """Share of the peak learning rate: linear warm-up, times a half cosine down to zero."""
    return min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / steps))


def select_maps(maps: FeatureMaps, rows: Rows, views: Rows, device: torch.device) -> Tensor:
    """Maps (n, c, h, w) of one view for each of the rows, stored channels last."""
    selected = torch.from_numpy(np.ascontiguousarray(take_rows(maps, rows, views)))
    return selected.to(device, torch.get_default_dtype()).permute(0, 3, 1, 2)
