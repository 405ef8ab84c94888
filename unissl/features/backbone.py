"""Frozen pretrained backbones: loading, frozen and trainable stages, and the shipped model from images to classes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unissl.features.scaler import FeatureScaler
from unissl.nets import INPUT_MEAN, INPUT_STD, Network, build, channels_last
from unissl.nets.backbones.base import Backbone
from unissl.nets.backbones.registry import all_backbones
from unissl.nets.bf16 import is_used
from unissl.nets.external import describe


def load_backbone(
    name: str, channels: int, *, pretrained: bool = True, arch_config: Mapping[str, Any] | None = None
) -> Network:
    """The network up to its feature, in its fastest form for inference; torch's generator is left as it was.

    A registered backbone with pretrained weights is loaded once per process; each caller gets a copy.
    """
    if name in all_backbones() and pretrained:
        return copy.deepcopy(_load_pretrained(all_backbones()[name], channels, torch.get_default_dtype()))
    return _load(name, channels, pretrained=pretrained, arch_config=arch_config)


@cache
def _load_pretrained(backbone: Backbone, channels: int, dtype: torch.dtype) -> Network:
    """``dtype`` is torch's default, in which the network is created."""
    return _load(backbone.name, channels, pretrained=True)


def _load(name: str, channels: int, *, pretrained: bool, arch_config: Mapping[str, Any] | None = None) -> Network:
    with torch.random.fork_rng(devices=[]):
        net = build(name, 1, channels, pretrained=pretrained, arch_config=arch_config)
    if net.backbone is not None:
        net = net.backbone.fold_for_inference(net)
    net.head = nn.Identity()  # type: ignore[assignment]
    return channels_last(net).eval().requires_grad_(False)


def weights_hash(name: str) -> str:
    """Hash of everything that the features of a backbone depend on, besides the images."""
    return all_backbones()[name].weights_hash if name in all_backbones() else describe(name).weights_hash


def normalisation(channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, for pixels in 0..1, of the input of every pretrained network; a network
    that expects others starts with an adapter."""
    return (INPUT_MEAN,) * channels, (INPUT_STD,) * channels


def extracts_in_bf16(name: str, device: torch.device, allowed: bool | None = None) -> bool:
    """Whether augmented views pass the backbone in bfloat16; ``allowed`` is the decision of a run, if there is one."""
    safe = name in all_backbones() and all_backbones()[name].bf16_safe
    return safe and device.type == "cpu" and is_used(allowed)


def trainable_tail(net: Network) -> tuple[str, ...]:
    """Names of the last stages that distillation may train."""
    if net.backbone is None or net.backbone.trainable_tail is None:
        raise ValueError("the network declares no trainable tail")
    return net.backbone.trainable_tail


def frozen_stages(net: Network) -> nn.Sequential:
    """The stages before the trainable tail, which stay frozen in distillation."""
    tail = trainable_tail(net)
    return nn.Sequential(*(stage for name, stage in net.stages.items() if name not in tail))


def tail_stages(net: Network) -> nn.Sequential:
    """The stages of the trainable tail."""
    return nn.Sequential(*(net.stages[name] for name in trainable_tail(net)))


def feature_map_shape(net: Network, image_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Height, width and channels of the map that enters the trainable tail."""
    parameter = next(net.parameters())
    with torch.inference_mode():
        _, channels, height, width = frozen_stages(net)(torch.zeros(1, *image_shape).to(parameter)).shape
    return height, width, channels


def forward_features(net: Network, images: Tensor, *, maps: bool) -> list[npt.NDArray[Any]]:
    """float32 features (n, D) of normalised images and, with ``maps``, the float16 maps (n, h, w, c) that enter the
    trainable tail, whatever the network computes in."""
    dtype = next(net.parameters(), images).dtype
    images = images.to(dtype) if dtype == torch.bfloat16 else images
    if not maps:
        return [_numpy(net(images).feat, torch.float32)]
    inner = frozen_stages(net)(images)
    features = tail_stages(net)(inner).mean(dim=(2, 3))
    return [_numpy(features, torch.float32), _numpy(inner.permute(0, 2, 3, 1), torch.float16)]


def _numpy(values: Tensor, dtype: torch.dtype) -> npt.NDArray[Any]:
    return np.ascontiguousarray(values.to(dtype).cpu().numpy())


class FrozenBackbone(nn.Module):
    """Normalised images (n, channels, H, W) to scaled features (n, D), as training has them from the cache."""

    def __init__(self, net: Network, scaling: FeatureScaler) -> None:
        super().__init__()
        self.net = net
        self.scaling = scaling

    @classmethod
    def empty(cls, name: str, channels: int, arch_config: Mapping[str, Any] | None = None) -> FrozenBackbone:
        """With weights yet to be loaded; with an ``arch_config`` the source of an external network is not needed."""
        net = load_backbone(name, channels, pretrained=False, arch_config=arch_config)
        return cls(net, FeatureScaler(torch.zeros(net.feat_dim), torch.ones(net.feat_dim)))

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.scaling(self.net(x).feat)
        return scaled


class WithBackbone(nn.Module):
    """A module trained on features, behind the backbone that computes them from images."""

    def __init__(self, front: FrozenBackbone, module: nn.Module) -> None:
        super().__init__()
        self.front = front
        self.module = module

    def forward(self, x: Tensor) -> object:
        return self.module(self.front(x))
