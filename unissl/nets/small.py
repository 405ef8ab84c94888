"""A three-stage convolutional network of about 44,000 parameters, for tiny images, quick trials and tests."""

from __future__ import annotations

from torch import nn

from unissl.nets.base import Network, conv3x3


def _stage(width_in: int, width_out: int, stride: int, bn_momentum: float) -> nn.Sequential:
    norm = nn.BatchNorm2d(width_out, momentum=bn_momentum)
    return nn.Sequential(conv3x3(width_in, width_out, stride), norm, nn.LeakyReLU(0.1))


class SmallNet(Network):
    """conv - BN - LeakyReLU three times; the second and third halve the image. The third stage is the map."""

    def __init__(self, num_classes: int, in_channels: int, bn_momentum: float) -> None:
        stages = {
            "stage1": _stage(in_channels, 16, 1, bn_momentum),
            "stage2": _stage(16, 32, 2, bn_momentum),
            "map": _stage(32, 128, 2, bn_momentum),
        }
        super().__init__(stages, {"stage1": 16, "stage2": 32, "map": 128}, num_classes)
