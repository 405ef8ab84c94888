"""Architectures by name, with random weights."""

from __future__ import annotations

import re

from unissl.errors import UserError, did_you_mean, shortened
from unissl.nets.backbones.registry import all_backbones
from unissl.nets.base import Network
from unissl.nets.resnet import LAYOUTS, ResNet
from unissl.nets.small import SmallNet
from unissl.nets.wrn import WideResNet

MAX_DEPTH, MAX_WIDTH = 400, 64
"""Of wide residual networks, far beyond any that was ever trained."""


def list_networks() -> list[str]:
    """Names that :func:`create_network` accepts; of wide residual networks a few, since depth and width are free."""
    resnets = [f"resnet-{depth}{stem}" for depth in LAYOUTS for stem in ("", "-cifar")]
    return ["small", "wrn-10-1", "wrn-16-2", "wrn-28-2", "wrn-28-8", *resnets, *all_backbones()]


def create_network(name: str, num_classes: int, in_channels: int, bn_momentum: float) -> Network:
    """The architecture of that name; its weights are drawn from torch's global generator."""
    if name in all_backbones():
        return all_backbones()[name].create(num_classes, in_channels, bn_momentum)
    if name == "small":
        return SmallNet(num_classes, in_channels, bn_momentum)
    if wrn := re.fullmatch(r"wrn-([0-9]{1,9})-([0-9]{1,9})", name):
        depth, width = int(wrn[1]), int(wrn[2])
        _check_wrn(name, depth, width)
        return WideResNet(depth, width, num_classes, in_channels, bn_momentum)
    resnet = re.fullmatch(r"resnet-([0-9]{1,9})(-cifar)?", name)
    if resnet and int(resnet[1]) in LAYOUTS:
        return ResNet(int(resnet[1]), num_classes, in_channels, bn_momentum, small_images=resnet[2] is not None)
    raise UserError(
        f"Unknown network {shortened(name)!r}.{did_you_mean(name, list_networks())} "
        "Any wide residual network is written wrn-<depth>-<width>, for example 'wrn-28-2'."
    )


def _check_wrn(name: str, depth: int, width: int) -> None:
    if depth > MAX_DEPTH or width > MAX_WIDTH:
        raise UserError(f"Network {name!r}: at most wrn-{MAX_DEPTH}-{MAX_WIDTH} can be built; use a smaller one.")
    if width < 1:
        raise UserError(f"Network {name!r}: the width must be at least 1, for example 'wrn-{max(depth, 10)}-1'.")
    if depth < 10:
        raise UserError(f"Network {name!r}: the depth must be 6n + 4; the nearest is 'wrn-10-{width}'.")
    below = depth - (depth - 4) % 6
    if depth != below:
        raise UserError(
            f"Network {name!r}: the depth must be 6n + 4; the nearest are 'wrn-{below}-{width}' "
            f"and 'wrn-{below + 6}-{width}'."
        )
