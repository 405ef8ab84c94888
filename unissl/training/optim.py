"""Optimiser groups and learning-rate schedule of the protocol."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from unissl.config import Settings
from unissl.nets.fine_tuning import PretrainedStages
from unissl.utils.optimizers import SGD, Adam

LR_SCALE = "lr_scale"
"""Key of an optimiser group: factor of its learning rate."""


class OptimConfig(Settings):
    name: Literal["sgd", "adam"] = "sgd"
    """SGD with Nesterov momentum, or Adam."""
    lr: float = Field(default=0.03, gt=0)
    """Learning rate at the start."""
    backbone_lr_scale: float = Field(default=0.1, gt=0, le=1)
    """With net.pretrained: learning rate of the pretrained part, as a factor of lr."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD."""
    weight_decay: float = Field(default=5e-4, ge=0)
    """L2 decay of tensors with two or more dimensions; biases and BatchNorm get none."""
    schedule: Literal["cosine", "cosine-to-zero", "step", "constant"] = "cosine"
    """cosine: lr cos(7 pi t / 16 T), which ends at a fifth of lr. cosine-to-zero: lr (1 + cos(pi t / T)) / 2. step: a
    fifth of lr in the last fifth of the budget."""
    ema_decay: float = Field(default=0.999, ge=0, lt=1)
    """Decay of the averaged parameters that are evaluated; 0 evaluates the live ones."""
    tail_average: float = Field(default=0.0, ge=0, lt=1)
    """Share of the budget at its end over which parameters and BatchNorm statistics are averaged evenly; 0 for none."""


def build_optimizer(module: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Two groups: decayed (>= 2 dimensions) and not decayed; two more at a lower rate for pretrained parameters."""
    pretrained = {id(p) for part in module.modules() if isinstance(part, PretrainedStages) for p in part.parameters()}
    parameters = [p for p in module.parameters() if p.requires_grad]
    groups = _groups([p for p in parameters if id(p) not in pretrained], config, lr_scale=1.0)
    if pretrained:
        groups += _groups([p for p in parameters if id(p) in pretrained], config, lr_scale=config.backbone_lr_scale)
    if config.name == "adam":
        return Adam(groups, lr=config.lr, foreach=True)
    return SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.momentum > 0, foreach=True)


def _groups(parameters: list[nn.Parameter], config: OptimConfig, lr_scale: float) -> list[dict[str, Any]]:
    rate = {"lr": lr_scale * config.lr, LR_SCALE: lr_scale}
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay, **rate},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0, **rate},
    ]


def learning_rate(config: OptimConfig, iteration: int, total: int) -> float:
    """The learning rate of step ``iteration`` (0-based)."""
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "step":
        return config.lr if 5 * iteration < 4 * total else config.lr / 5
    if config.schedule == "cosine-to-zero":
        return config.lr * (1 + math.cos(math.pi * iteration / total)) / 2
    return config.lr * math.cos(7 * math.pi * iteration / (16 * total))


def tail_step(config: OptimConfig, iteration: int, total: int) -> int:
    """Number of step ``iteration`` (0-based) in the tail that is averaged, from 1 on; 0 before it."""
    length = round(config.tail_average * total)
    return max(0, iteration + 1 - (total - length))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every group, scaled by the group's factor."""
    for group in optimizer.param_groups:
        group["lr"] = group[LR_SCALE] * rate
