"""Residual networks (He et al., 2015, https://arxiv.org/abs/1512.03385): ResNet-18 and ResNet-50.

The ImageNet stem (7x7, stride 2, then max-pooling) shrinks an image by four before the first stage; the CIFAR stem
(3x3, stride 1) keeps small images whole. In bottlenecks the stride sits on the 3x3 convolution, as in every current
library.
"""

from __future__ import annotations

from torch import Tensor, nn

from unissl.nets.base import Network, conv1x1, conv3x3

STEM_WIDTH = 64


BOTTLENECK_EXPANSION = 4
"""Output channels of a bottleneck per inner channel."""
LAYOUTS = {18: (False, (2, 2, 2, 2)), 50: (True, (3, 4, 6, 3))}
"""Depth -> whether its blocks are bottlenecks, blocks in each of the four stages."""


class Block(nn.Module):
    """relu(branch(x) + shortcut(x)); the shortcut is a 1x1 convolution with BN where shape or width changes.

    The branch has two 3x3 convolutions; in a bottleneck, one between two of 1x1.
    """

    def __init__(self, width_in: int, inner: int, stride: int, bn_momentum: float, *, bottleneck: bool) -> None:
        super().__init__()
        if bottleneck:
            width_out = inner * BOTTLENECK_EXPANSION
            convs = [conv1x1(width_in, inner), conv3x3(inner, inner, stride), conv1x1(inner, width_out)]
        else:
            width_out = inner
            convs = [conv3x3(width_in, inner, stride), conv3x3(inner, inner)]
        layers: list[nn.Module] = []
        for conv in convs:
            layers += [conv, nn.BatchNorm2d(conv.out_channels, momentum=bn_momentum), nn.ReLU()]
        self.branch = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width_out:
            norm = nn.BatchNorm2d(width_out, momentum=bn_momentum)
            self.shortcut = nn.Sequential(conv1x1(width_in, width_out, stride), norm)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.branch(x) + self.shortcut(x))
        return out


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
        bottleneck, repeats = LAYOUTS[depth]
        stages: dict[str, nn.Module] = {"stem": _stem(in_channels, bn_momentum, small_images=small_images)}
        tap_dims = {"stem": STEM_WIDTH}
        width = STEM_WIDTH
        for i in range(4):
            inner, stride = 64 * 2**i, 1 if i == 0 else 2
            blocks = [Block(width, inner, stride, bn_momentum, bottleneck=bottleneck)]
            width = inner * BOTTLENECK_EXPANSION if bottleneck else inner
            blocks += [Block(width, inner, 1, bn_momentum, bottleneck=bottleneck) for _ in range(repeats[i] - 1)]
            stages[f"stage{i + 1}"], tap_dims[f"stage{i + 1}"] = nn.Sequential(*blocks), width
        super().__init__({**stages, "map": nn.Identity()}, {**tap_dims, "map": width}, num_classes)
