"""Plain PyTorch, network: a wide residual network as one would first write it."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn


class PlainUnit(nn.Module):
    def __init__(self, width_in: int, width_out: int, stride: int, *, first: bool) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(width_in, momentum=0.001)
        self.conv1 = nn.Conv2d(width_in, width_out, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width_out, momentum=0.001)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(width_in, width_out, 1, stride, bias=False) if width_in != width_out else None
        self.activation = nn.LeakyReLU(0.1)
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        activated = self.activation(self.norm1(x))
        if self.shortcut is None:
            into_branch, skip = activated, x
        elif self.first:
            into_branch, skip = activated, self.shortcut(activated)
        else:  # the activated input is computed and thrown away, as in the published networks
            into_branch, skip = x, self.shortcut(x)
        out: Tensor = skip + self.conv2(self.activation(self.norm2(self.conv1(into_branch))))
        return out


class PlainNet(nn.Module):
    """``wrn-<depth>-<width>``: images to logits (n, C) and features (n, D)."""

    def __init__(self, name: str, num_classes: int, channels: int = 3) -> None:
        super().__init__()
        parts = re.fullmatch(r"wrn-([0-9]+)-([0-9]+)", name)
        if parts is None:
            raise ValueError(f"the plain implementation has wide residual networks only, not {name!r}")
        units, width = (int(parts[1]) - 4) // 6, int(parts[2])
        self.stem = nn.Conv2d(channels, 16, 3, padding=1)
        blocks: list[nn.Module] = []
        width_in = 16
        for group in range(3):
            width_out = 16 * width * 2**group
            for unit in range(units):
                stride = 2 if group > 0 and unit == 0 else 1
                blocks.append(PlainUnit(width_in, width_out, stride, first=group == 0 and unit == 0))
                width_in = width_out
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(width_in, eps=1e-3, momentum=0.001)
        self.activation = nn.LeakyReLU(0.1)
        self.head = nn.Linear(width_in, num_classes)
        self.feat_dim = width_in

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.activation(self.norm(self.blocks(self.stem(x))))
        feat = x.mean((2, 3))
        return self.head(feat), feat


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Parameters and buffers of one module into another that has the same ones in the same order."""
    for to, value in zip(_tensors(target), _tensors(source), strict=True):
        if to.shape != value.shape:
            raise ValueError(f"a tensor of shape {tuple(value.shape)} does not fit one of {tuple(to.shape)}")
        to.copy_(value)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]
