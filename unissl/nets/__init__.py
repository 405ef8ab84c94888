"""Networks by name: images (n, channels, H, W) in, :class:`unissl.types.Outputs` out.

A name is that of an architecture (:mod:`unissl.nets.registry`), of a pretrained backbone (:mod:`unissl.nets.backbones`)
or of a pretrained network from elsewhere (:mod:`unissl.nets.external`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, TypeVar

import torch
from pydantic import Field, model_validator
from torch import nn

from unissl.config import Settings
from unissl.errors import UserError
from unissl.nets.backbones.base import IMAGENET_MEAN, IMAGENET_STD, INPUT_MEAN, INPUT_STD, InputAdapter
from unissl.nets.backbones.registry import (
    DEFAULT_BACKBONE,
    DEFAULT_TEACHER,
    all_backbones,
    backbone_installed,
    list_backbones,
    supports_distillation,
)
from unissl.nets.base import Network
from unissl.nets.external import ExternalNet, describe, load, parse
from unissl.nets.registry import create_network, list_networks

__all__ = [
    "DEFAULT_BACKBONE",
    "DEFAULT_TEACHER",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "INPUT_MEAN",
    "INPUT_STD",
    "NetConfig",
    "Network",
    "backbone_installed",
    "build",
    "channels_last",
    "is_pretrained_name",
    "list_backbones",
    "list_networks",
    "preferred_image_size",
    "supports_distillation",
]

M = TypeVar("M", bound=nn.Module)


class NetConfig(Settings):
    """Which network is trained."""

    name: str = "wrn-28-2"
    """wrn-<depth>-<width>, resnet-18, resnet-50 (each also with -cifar for small images), small; or a pretrained
    network: a backbone for photos, NAME@FILE.safetensors, hf:OWNER/NAME, hf:FOLDER, timm:NAME, module:factory."""

    bn_momentum: float = Field(default=0.001, gt=0.0, le=1.0)
    """Weight of one batch in BatchNorm's running statistics; short runs need more, about 0.01 to 0.1."""

    freeze_backbone: bool = False
    """Freeze the pretrained network and train a small one on its features, which are extracted once: minutes. By
    default true for a pretrained net.name, unless net.pretrained is set."""

    pretrained: bool = False
    """Fine-tune the network from its pretrained weights, at optim.backbone_lr_scale times the rate: hours on a CPU."""

    unfreeze_last: int | None = Field(default=None, ge=0)
    """With net.pretrained: fine-tune only the last so many stages of the network and its classifier."""

    @model_validator(mode="before")
    @classmethod
    def _freeze_pretrained(cls, values: Any) -> Any:
        """A pretrained name means pretrained and frozen, unless the user says otherwise."""
        if not isinstance(values, Mapping) or "freeze_backbone" in values or values.get("pretrained"):
            return values
        return {**values, "freeze_backbone": True} if is_pretrained_name(values.get("name")) else values

    @model_validator(mode="after")
    def _pretrained_weights_exist(self) -> Self:
        try:
            external = parse(self.name) is not None
        except UserError as error:
            raise ValueError(str(error)) from None
        if self.freeze_backbone and self.pretrained:
            raise ValueError(
                "net.freeze_backbone freezes the network that net.pretrained fine-tunes; leave out net.pretrained, or "
                "set net.freeze_backbone to false"
            )
        if self.unfreeze_last is not None and not self.pretrained:
            raise ValueError("net.unfreeze_last applies to fine-tuning; set net.pretrained too")
        for setting in ("pretrained", "freeze_backbone"):
            if getattr(self, setting) and not is_pretrained_name(self.name):
                raise ValueError(
                    f"there are no pretrained weights for {self.name!r}; "
                    f"set net.name to {', '.join(all_backbones())}, or leave out net.{setting}"
                )
        if external and not (self.freeze_backbone or self.pretrained):
            raise ValueError(
                f"{self.name!r} is a pretrained network; set net.freeze_backbone or net.pretrained to true"
            )
        return self


def is_pretrained_name(name: object) -> bool:
    """Whether a network name means pretrained weights: a backbone, a weights file or an external network."""
    try:
        return isinstance(name, str) and (name in all_backbones() or parse(name) is not None)
    except UserError:
        return False


def preferred_image_size(name: str) -> int | None:
    """Side in pixels of the images that a pretrained network was trained on; None where it is not known.

    For an external network that is the size of its preprocessing; it is loaded to find out, once per process.
    """
    if name in all_backbones():
        return all_backbones()[name].image_size
    return describe(name).image_size if parse(name) is not None else None


def build(
    name: str,
    num_classes: int,
    in_channels: int = 3,
    *,
    bn_momentum: float = 0.001,
    pretrained: bool = False,
    arch_config: Mapping[str, Any] | None = None,
) -> Network:
    """A network for images (n, in_channels, H, W); random weights are drawn from torch's global generator.

    With ``pretrained``, all weights but the classifier's are those of the backbone ``name``. An external network
    (:mod:`unissl.nets.external`) always has its weights, unless the ``arch_config`` of an earlier one is given, which
    builds its architecture alone.

    Example:
        >>> build("wrn-28-2", num_classes=10).feat_dim
        128
    """
    if parse(name) is not None:
        return ExternalNet(load(name, arch_config), num_classes, in_channels)
    if name in all_backbones():
        return _build_backbone(name, num_classes, in_channels, bn_momentum, pretrained=pretrained)
    if pretrained:
        raise UserError(
            f"There are no pretrained weights for {name!r}; use {', '.join(all_backbones())}, or train from scratch."
        )
    return create_network(name, num_classes, in_channels, bn_momentum)


def _build_backbone(name: str, num_classes: int, in_channels: int, bn_momentum: float, *, pretrained: bool) -> Network:
    """A backbone behind an :class:`InputAdapter` where it expects another normalisation or cannot read grey images."""
    backbone = all_backbones()[name]
    common = backbone.mean == (INPUT_MEAN,) * 3 and backbone.std == (INPUT_STD,) * 3
    adapted = not common or (in_channels == 1 and not backbone.reads_grey)
    if adapted and in_channels not in (1, 3):
        raise UserError(f"The network {name} reads grey or RGB images, not images of {in_channels} channels.")
    net = create_network(name, num_classes, 3 if adapted else in_channels, bn_momentum)
    if pretrained:
        backbone.load_weights(net)
    if adapted:
        net.stages = nn.ModuleDict({"entrance": InputAdapter(backbone.mean, backbone.std), **net.stages})
    net.backbone = backbone
    return net


def channels_last(module: M) -> M:
    """Keep convolution weights in the memory order that suits images stored pixel by pixel; faster on every device."""
    return module.to(memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]
