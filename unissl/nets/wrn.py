"""Wide residual networks (Zagoruyko and Komodakis, 2016, https://arxiv.org/abs/1605.07146) in the form that the
semi-supervised literature trains, with its two irregular units, since the published results depend on them.

Depth 6n + 4 means three groups of n units; the widths are 16, then 16w, 32w, 64w. The units that change width are
irregular:

- in group 1 the activated input feeds the branch *and* the shortcut ("activate before residual");
- in groups 2 and 3 the activated input is computed and discarded: branch and shortcut read the raw input. The affine
  parameters of that BatchNorm never train, but its running statistics follow the data.

Width 1 has no change of width in group 1, so there its first unit is an ordinary one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unissl.nets.base import Network, apply_norm_act_conv, conv1x1, conv3x3

SLOPE = 0.1
STEM_WIDTH = 16


class Unit(nn.Module):
    """BN - act - conv(stride) - BN - act - conv, plus a shortcut, a 1x1 convolution where the width changes."""

    def __init__(self, width_in: int, width_out: int, stride: int, bn_momentum: float, *, activate_first: bool) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(width_in, momentum=bn_momentum)
        self.conv1 = conv3x3(width_in, width_out, stride)
        self.norm2 = nn.BatchNorm2d(width_out, momentum=bn_momentum)
        self.conv2 = conv3x3(width_out, width_out)
        self.shortcut = conv1x1(width_in, width_out, stride) if width_in != width_out else None
        self.activation = nn.LeakyReLU(SLOPE)
        self.activate_first = activate_first

    @property
    def discards_preactivation(self) -> bool:
        return self.shortcut is not None and not self.activate_first

    def forward(self, x: Tensor) -> Tensor:
        if self.shortcut is None:
            inner = apply_norm_act_conv(self.norm1, self.activation, self.conv1, x)
            return x + apply_norm_act_conv(self.norm2, self.activation, self.conv2, inner)
        if self.activate_first:
            x = self.activation(self.norm1(x))
        elif self.norm1.training:
            with torch.no_grad():
                self.norm1(x)  # only for its running statistics
        shortcut: Tensor = self.shortcut(x)
        return shortcut + apply_norm_act_conv(self.norm2, self.activation, self.conv2, self.conv1(x))


def _group(units: int, width_in: int, width_out: int, stride: int, bn_momentum: float, *, first: bool) -> nn.Sequential:
    opening = Unit(width_in, width_out, stride, bn_momentum, activate_first=first)
    return nn.Sequential(
        opening, *(Unit(width_out, width_out, 1, bn_momentum, activate_first=False) for _ in range(units - 1))
    )


class WideResNet(Network):
    """WRN-depth-width; taps are the stem, the raw output of each group and the activated map before pooling."""

    def __init__(self, depth: int, width: int, num_classes: int, in_channels: int, bn_momentum: float) -> None:
        units = (depth - 4) // 6
        w0, w1, w2, w3 = STEM_WIDTH, 16 * width, 32 * width, 64 * width
        stages = {
            "stem": conv3x3(in_channels, w0, bias=True),
            "stage1": _group(units, w0, w1, 1, bn_momentum, first=True),
            "stage2": _group(units, w1, w2, 2, bn_momentum, first=False),
            "stage3": _group(units, w2, w3, 2, bn_momentum, first=False),
            "map": nn.Sequential(nn.BatchNorm2d(w3, eps=1e-3, momentum=bn_momentum), nn.LeakyReLU(SLOPE)),
        }
        super().__init__(stages, {"stem": w0, "stage1": w1, "stage2": w2, "stage3": w3, "map": w3}, num_classes)

    def untrained_parameters(self) -> frozenset[str]:
        discarding = [
            name for name, unit in self.named_modules() if isinstance(unit, Unit) and unit.discards_preactivation
        ]
        return frozenset(f"{name}.norm1.{part}" for name in discarding for part in ("weight", "bias"))
