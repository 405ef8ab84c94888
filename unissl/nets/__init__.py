"""Networks by name: images (n, channels, H, W) in, :class:`unissl.types.Outputs` out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, TypeVar

import torch
from pydantic import Field, model_validator
from torch import nn

from unissl.config import Settings
from unissl.errors import UserError
from unissl.nets.base import Network
from unissl.nets.efficientnet_lite import EfficientNetLite
from unissl.nets.external import ExternalNet, load, parse
from unissl.nets.pretrained import WEIGHTS, load_pretrained
from unissl.nets.registry import create_network, list_networks

__all__ = ["NetConfig", "Network", "build", "channels_last", "list_networks"]

M = TypeVar("M", bound=nn.Module)


class NetConfig(Settings):
    """Which network is trained."""

    name: str = "wrn-28-2"
    """wrn-<depth>-<width>, resnet-18, resnet-50 (each also with -cifar for small images), small, or, for photos,
    efficientnet-lite0, -lite1 or -lite2. Pretrained ones from elsewhere: transformers:FOLDER, NAME@FILE.safetensors,
    package.module:factory, timm:NAME."""

    bn_momentum: float = Field(default=0.001, gt=0.0, le=1.0)
    """Weight of one batch in BatchNorm's running statistics; short runs need more, about 0.01 to 0.1."""

    freeze_backbone: bool = False
    """Keep the pretrained network as it is and train a small one on its vectors, which are made once: minutes."""

    pretrained: bool = False
    """Train the network itself, from its pretrained weights on, at optim.backbone_lr_scale times the rate: hours on a CPU."""

    unfreeze_last: int | None = Field(default=None, ge=0)
    """With net.pretrained: train only the last so many parts of the network and its classifier; the others stay."""

    @model_validator(mode="after")
    def _pretrained_weights_exist(self) -> Self:
        try:
            foreign = parse(self.name) is not None
        except UserError as error:
            raise ValueError(str(error)) from None
        if self.freeze_backbone and self.pretrained:
            raise ValueError(
                "net.freeze_backbone keeps the pretrained network as it is; leave out net.pretrained to do so"
            )
        if self.unfreeze_last is not None and not self.pretrained:
            raise ValueError("net.unfreeze_last is about training a pretrained network; set net.pretrained too")
        if self.pretrained and not foreign and self.name not in WEIGHTS:
            raise ValueError(_no_weights("start from", self.name, "net.pretrained"))
        if self.freeze_backbone and not foreign and self.name not in WEIGHTS:
            raise ValueError(_no_weights("freeze", self.name, "net.freeze_backbone"))
        if foreign and not (self.freeze_backbone or self.pretrained):
            raise ValueError(
                f"{self.name!r} is a pretrained network; set net.freeze_backbone or net.pretrained to true"
            )
        return self


def _no_weights(purpose: str, name: str, setting: str) -> str:
    return (
        f"there are no pretrained weights to {purpose} for {name!r}; "
        f"set net.name to {', '.join(WEIGHTS)}, or leave out {setting}"
    )


def build(
    name: str,
    num_classes: int,
    in_channels: int = 3,
    *,
    bn_momentum: float = 0.001,
    pretrained: bool = False,
    recipe: Mapping[str, Any] | None = None,
) -> Network:
    """A freshly initialised network; the weights are drawn from torch's global generator.

    With ``pretrained``, all but the classifier are then those of :mod:`unissl.nets.pretrained`, which also says what
    images they expect. A network from elsewhere (:mod:`unissl.nets.external`) always comes with its weights, unless the
    ``recipe`` of one that was trained says its shape.

    Example:
        >>> build("wrn-28-2", num_classes=10).feat_dim
        128
    """
    if parse(name) is not None:
        return ExternalNet(load(name, recipe), num_classes, in_channels)
    if pretrained and name not in WEIGHTS:
        raise UserError(
            f"There are no pretrained weights for {name!r}; use {', '.join(WEIGHTS)}, or train from scratch."
        )
    net = create_network(name, num_classes, in_channels, bn_momentum)
    if pretrained:
        assert isinstance(net, EfficientNetLite)
        load_pretrained(net, name)
    return net


def channels_last(module: M) -> M:
    """Keep convolution weights in the memory order that suits images stored pixel by pixel; faster on every device."""
    return module.to(memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]
