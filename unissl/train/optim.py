"""Optimiser groups and learning-rate schedule of the protocol."""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import nn

from unissl.config import Settings


class OptimConfig(Settings):
    name: Literal["sgd", "adam"] = "sgd"
    """SGD with Nesterov momentum, or Adam."""
    lr: float = Field(default=0.03, gt=0)
    """Learning rate at the start."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD."""
    weight_decay: float = Field(default=5e-4, ge=0)
    """L2 decay of tensors with two or more dimensions; biases and BatchNorm get none."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """cosine: lr cos(7 pi t / 16 T). step: a fifth of lr in the last fifth of the budget."""
    ema: float = Field(default=0.999, ge=0, lt=1)
    """Decay of the averaged parameters that are evaluated; 0 evaluates the live ones."""


def build_optimizer(module: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Two groups: decayed (>= 2 dimensions) and not decayed."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    if config.name == "adam":
        return torch.optim.Adam(groups, lr=config.lr, foreach=True)
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.momentum > 0, foreach=True)


def learning_rate(config: OptimConfig, iteration: int, total: int) -> float:
    """The rate of step ``iteration`` (0-based)."""
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "step":
        return config.lr if 5 * iteration < 4 * total else config.lr / 5
    return config.lr * math.cos(7 * math.pi * iteration / (16 * total))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
