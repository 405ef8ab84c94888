"""Residual networks (He et al., 2015, https://arxiv.org/abs/1512.03385): ResNet-18 and ResNet-50.

The ImageNet stem (7x7, stride 2, then max-pooling) shrinks an image by four before the first stage; the CIFAR stem
(3x3, stride 1) keeps small images whole. In bottlenecks the stride sits on the 3x3 convolution, as in every current
library.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from unissl.nets.base import Network, conv1x1, conv3x3

STEM_WIDTH = 64


class _Block(nn.Module):
    """relu(branch(x) + shortcut(x)); the shortcut is a 1x1 convolution with BN where shape or width changes."""

    expansion: ClassVar[int]
    """Output channels per inner channel."""

    def __init__(self, width_in: int, inner: int, stride: int, bn_momentum: float) -> None:
        super().__init__()
        width_out = inner * self.expansion
        self.branch = self._make_branch(width_in, inner, stride, bn_momentum)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width_out:
            norm = nn.BatchNorm2d(width_out, momentum=bn_momentum)
            self.shortcut = nn.Sequential(conv1x1(width_in, width_out, stride), norm)
        self.activation = nn.ReLU()

    def _make_branch(self, width_in: int, inner: int, stride: int, bn_momentum: float) -> nn.Sequential:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.branch(x) + self.shortcut(x))
        return out


class BasicBlock(_Block):
    expansion = 1

    def _make_branch(self, width_in: int, inner: int, stride: int, bn_momentum: float) -> nn.Sequential:
        return nn.Sequential(
            conv3x3(width_in, inner, stride),
            nn.BatchNorm2d(inner, momentum=bn_momentum),
            nn.ReLU(),
            conv3x3(inner, inner),
            nn.BatchNorm2d(inner, momentum=bn_momentum),
        )


class Bottleneck(_Block):
    expansion = 4

    def _make_branch(self, width_in: int, inner: int, stride: int, bn_momentum: float) -> nn.Sequential:
        return nn.Sequential(
            conv1x1(width_in, inner),
            nn.BatchNorm2d(inner, momentum=bn_momentum),
            nn.ReLU(),
            conv3x3(inner, inner, stride),
            nn.BatchNorm2d(inner, momentum=bn_momentum),
            nn.ReLU(),
            conv1x1(inner, inner * self.expansion),
            nn.BatchNorm2d(inner * self.expansion, momentum=bn_momentum),
        )


LAYOUTS: dict[int, tuple[type[_Block], tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    50: (Bottleneck, (3, 4, 6, 3)),
}
"""Depth -> kind of block, blocks in each of the four stages."""


def _stem(in_channels: int, bn_momentum: float, *, small_images: bool) -> nn.Sequential:
    norm_act = [nn.BatchNorm2d(STEM_WIDTH, momentum=bn_momentum), nn.ReLU()]
    if small_images:
        return nn.Sequential(conv3x3(in_channels, STEM_WIDTH), *norm_act)
    conv = nn.Conv2d(in_channels, STEM_WIDTH, 7, stride=2, padding=3, bias=False)
    return nn.Sequential(conv, *norm_act, nn.MaxPool2d(3, stride=2, padding=1))


class ResNet(Network):
    """ResNet-depth; ``"map"`` is the output of stage 4, which is activated already."""

    def __init__(
        self, depth: int, num_classes: int, in_channels: int, bn_momentum: float, *, small_images: bool
    ) -> None:
        block, repeats = LAYOUTS[depth]
        stages: dict[str, nn.Module] = {"stem": _stem(in_channels, bn_momentum, small_images=small_images)}
        tap_dims = {"stem": STEM_WIDTH}
        width = STEM_WIDTH
        for i in range(4):
            inner, stride = 64 * 2**i, 1 if i == 0 else 2
            blocks = [block(width, inner, stride, bn_momentum)]
            width = inner * block.expansion
            blocks += [block(width, inner, 1, bn_momentum) for _ in range(repeats[i] - 1)]
            stages[f"stage{i + 1}"], tap_dims[f"stage{i + 1}"] = nn.Sequential(*blocks), width
        super().__init__({**stages, "map": nn.Identity()}, {**tap_dims, "map": width}, num_classes)
