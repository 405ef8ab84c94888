"""Networks by name: images (n, channels, H, W) in, :class:`unissl.types.Outputs` out."""

from __future__ import annotations

import re
from typing import Self, TypeVar

import torch
from pydantic import Field, model_validator
from torch import nn

from unissl.config import Settings
from unissl.errors import UserError, did_you_mean
from unissl.nets.base import Network
from unissl.nets.efficientnet_lite import SCALES, EfficientNetLite
from unissl.nets.pretrained import WEIGHTS, load_pretrained
from unissl.nets.resnet import LAYOUTS, ResNet
from unissl.nets.small import SmallNet
from unissl.nets.wrn import WideResNet

__all__ = ["NetConfig", "Network", "build", "channels_last", "known"]

M = TypeVar("M", bound=nn.Module)


class NetConfig(Settings):
    """Which network is trained."""

    name: str = "wrn-28-2"
    """wrn-<depth>-<width>, resnet-18, resnet-50 (each also with -cifar for small images), small, or, for photos,
    efficientnet-lite0, -lite1 or -lite2."""

    bn_momentum: float = Field(default=0.001, gt=0.0, le=1.0)
    """Weight of one batch in BatchNorm's running statistics; short runs need more, about 0.01 to 0.1."""

    frozen: bool = False
    """Keep the pretrained network as it is and train a small one on its vectors, which are made once: minutes."""

    @model_validator(mode="after")
    def _frozen_weights_exist(self) -> Self:
        if self.frozen and self.name not in WEIGHTS:
            raise ValueError(
                f"there are no pretrained weights to freeze for {self.name!r}; "
                f"set net.name to {', '.join(WEIGHTS)}, or leave out net.frozen"
            )
        return self


def known() -> list[str]:
    """Names that :func:`build` takes; of the wide residual networks a few, since depth and width are free."""
    resnets = [f"resnet-{depth}{stem}" for depth in LAYOUTS for stem in ("", "-cifar")]
    return ["small", "wrn-10-1", "wrn-16-2", "wrn-28-2", "wrn-28-8", *resnets, *SCALES]


def build(
    name: str, num_classes: int, in_channels: int = 3, *, bn_momentum: float = 0.001, pretrained: bool = False
) -> Network:
    """A freshly initialised network; the weights are drawn from torch's global generator.

    With ``pretrained``, all but the classifier are then those of :mod:`unissl.nets.pretrained`, which also says what
    images they expect.

    Example:
        >>> build("wrn-28-2", num_classes=10).feat_dim
        128
    """
    if pretrained and name not in WEIGHTS:
        raise UserError(
            f"There are no pretrained weights for {name!r}; use {', '.join(WEIGHTS)}, or train from scratch."
        )
    if name in SCALES:
        lite = EfficientNetLite(name, num_classes, in_channels, bn_momentum)
        if pretrained:
            load_pretrained(lite, name)
        return lite
    if name == "small":
        return SmallNet(num_classes, in_channels, bn_momentum)
    if wrn := re.fullmatch(r"wrn-([0-9]+)-([0-9]+)", name):
        depth, width = int(wrn[1]), int(wrn[2])
        _check_wrn(name, depth, width)
        return WideResNet(depth, width, num_classes, in_channels, bn_momentum)
    resnet = re.fullmatch(r"resnet-([0-9]+)(-cifar)?", name)
    if resnet and int(resnet[1]) in LAYOUTS:
        return ResNet(int(resnet[1]), num_classes, in_channels, bn_momentum, small_images=resnet[2] is not None)
    raise UserError(
        f"Unknown network {name!r}.{did_you_mean(name, known())} "
        "Any wide residual network is written wrn-<depth>-<width>, for example 'wrn-28-2'."
    )


def channels_last(module: M) -> M:
    """Keep convolution weights in the memory order that suits images stored pixel by pixel; faster on every device."""
    return module.to(memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]


def _check_wrn(name: str, depth: int, width: int) -> None:
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
