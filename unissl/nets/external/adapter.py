"""Pretrained networks from elsewhere, wrapped: stages behind an adapter to the normalisation that they expect."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from unissl.errors import UserError
from unissl.nets.backbones.base import InputAdapter
from unissl.nets.base import Network

PROBE_SIZE = 64
"""Side of the image that probes the length of the feature, where a network declares no image size."""


@dataclass(frozen=True)
class ExternalBackbone:
    """A pretrained network up to its feature; its last stage, ``map``, returns (n, D, h, w) or (n, D)."""

    name: str
    stages: Mapping[str, nn.Module]
    tap_dims: Mapping[str, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    image_size: int | None
    """Side of the images it was trained on, where that is known."""
    arch_config: Mapping[str, Any]
    """What, besides the name and the weights, it takes to rebuild the network: JSON values."""
    untrained: frozenset[str] = frozenset()
    """Names of parameters that never get a gradient."""

    @property
    def feat_dim(self) -> int:
        return self.tap_dims["map"]

    @cached_property
    def weights_hash(self) -> str:
        """Hash of all that its features depend on."""
        facts = [list(self.stages), list(self.mean), list(self.std), dict(self.arch_config)]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for stage in self.stages.values():
            for name, tensor in stage.state_dict().items():
                digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
                digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def wrap_module(
    name: str,
    module: nn.Module,
    mean: Sequence[float],
    std: Sequence[float],
    image_size: int | None,
    arch_config: Mapping[str, Any],
) -> ExternalBackbone:
    """A module as a backbone of one stage; a random image probes the length of its feature."""
    module.eval()
    side = image_size or PROBE_SIZE
    image = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            output, repeated = module(image), module(image)
    except Exception as error:
        raise UserError(
            f"The network {name} fails on an image of {side} x {side} pixels ({_first_line(error)}); it must take "
            "a tensor (n, 3, height, width), and may declare the side it needs in an attribute 'size'."
        ) from error
    if not isinstance(output, Tensor) or output.ndim not in (2, 4) or len(output) != 1:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UserError(
            f"The network {name} returns {shape} for one image; it must return a tensor (n, D) or (n, D, h, w): leave "
            "out its classifier."
        )
    if not torch.allclose(output, repeated, rtol=1e-3, atol=1e-4):
        raise UserError(
            f"The network {name} returns different features for the same image; use one that draws no random numbers "
            "in eval mode."
        )
    dims = {"map": output.shape[1]}
    return ExternalBackbone(name, {"map": module}, dims, tuple(mean), tuple(std), image_size, arch_config)


class ExternalNet(Network):
    """An external backbone behind its input adapter, with a new classifier; its own weights are left as they are."""

    def __init__(self, backbone: ExternalBackbone, num_classes: int, in_channels: int) -> None:
        channels = len(backbone.mean)
        if in_channels not in (1, channels):
            readable = "grey" if channels == 1 else "grey or RGB"
            raise UserError(
                f"The network {backbone.name} reads {readable} images, not images of {in_channels} channels."
            )
        super().__init__(backbone.stages, backbone.tap_dims, num_classes)
        self.stages = nn.ModuleDict({"entrance": InputAdapter(backbone.mean, backbone.std), **backbone.stages})
        self.image_size = backbone.image_size
        self.arch_config = dict(backbone.arch_config)
        self.untrained = backbone.untrained
        if list(backbone.stages) == ["map"]:
            self.tap_dims = {}

    def untrained_parameters(self) -> frozenset[str]:
        return self.untrained

    def _initialise_stages(self) -> None:
        """They have their weights."""


def arch_config_of(net: nn.Module) -> dict[str, Any] | None:
    """What a shipped model must store of an external network besides its weights; None for all others."""
    return net.arch_config if isinstance(net, ExternalNet) else None


@torch.no_grad()
def check_input_size(net: Network, name: str, channels: int, height: int, width: int) -> None:
    """Fail early where an external network cannot read images of this size."""
    if not isinstance(net, ExternalNet):
        return
    was_training = net.training
    try:
        net.eval()(torch.zeros(1, channels, height, width, device=next(net.buffers()).device))
    except Exception as error:
        fix = "the side it expects" if net.image_size is None else str(net.image_size)
        raise UserError(
            f"The network {name} cannot read images of {height} x {width} pixels ({_first_line(error)}); "
            f"set data.image_size to {fix}."
        ) from error
    finally:
        net.train(was_training)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
