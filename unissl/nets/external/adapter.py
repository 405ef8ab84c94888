"""What a pretrained network from elsewhere is turned into: stages behind an entrance that speaks its normalisation.

All pretrained networks are fed alike, with images normalised by :data:`MEAN` and :data:`STD`. What theirs is stands in
the :class:`Entrance`, whose numbers are saved with the weights: a shipped model cannot be fed in the wrong way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unissl.errors import UserError
from unissl.nets.base import Network
from unissl.nets.pretrained import MEAN, STD
from unissl.types import Outputs

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""What most networks trained on ImageNet expect, for pixels in 0..1."""
PROBE_SIZE = 64
"""Side of the image that tells the length of the feature, where a network names no size of its own."""


@dataclass(frozen=True)
class Backbone:
    """A pretrained network up to its feature; its last stage, ``map``, gives maps (n, D, h, w) or vectors (n, D)."""

    name: str
    stages: Mapping[str, nn.Module]
    tap_dims: Mapping[str, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int | None
    """Side of the images it was trained on, where that is known."""
    recipe: Mapping[str, Any]
    """What, beside the name and the weights, it takes to build the network again: JSON values."""
    discarded: frozenset[str] = frozenset()
    """Names of parameters that no loss can reach."""

    @property
    def feature_length(self) -> int:
        return self.tap_dims["map"]

    @property
    def identity(self) -> str:
        """Hash of all that its vectors depend on."""
        facts = [list(self.stages), list(self.mean), list(self.std), dict(self.recipe)]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for stage in self.stages.values():
            for name, tensor in stage.state_dict().items():
                digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
                digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def around(
    name: str,
    module: nn.Module,
    mean: Sequence[float],
    std: Sequence[float],
    size: int | None,
    recipe: Mapping[str, Any],
) -> Backbone:
    """A module of somebody else's as a backbone; an image of noise through it tells the length of its feature."""
    module.eval()
    side = size or PROBE_SIZE
    image = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            said, again = module(image), module(image)
    except Exception as error:
        raise UserError(
            f"The network {name} fails on an image of {side} x {side} pixels ({_first_line(error)}); it must take "
            "a tensor (n, 3, height, width), and may name the side it needs in an attribute 'size'."
        ) from error
    if not isinstance(said, Tensor) or said.ndim not in (2, 4) or len(said) != 1:
        what = tuple(said.shape) if isinstance(said, Tensor) else type(said).__name__
        raise UserError(
            f"The network {name} gives {what} for one image; it must give a tensor (n, D) or (n, D, h, w): leave out "
            "its classifier."
        )
    if not torch.allclose(said, again, rtol=1e-3, atol=1e-4):
        raise UserError(
            f"The network {name} gives the same image another vector each time; use one that draws no random numbers "
            "in eval mode."
        )
    return Backbone(name, {"map": module}, {"map": said.shape[1]}, tuple(mean), tuple(std), size, recipe)


class InputAdapter(nn.Module):
    """Images as all pretrained networks are fed here, to the channels and the normalisation that this one expects.

    A grey image (n, 1, H, W) comes out with as many equal channels as there are means.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        pixels = torch.tensor([mean, std], dtype=torch.float64).view(2, -1, 1, 1)
        self.register_buffer("scale", (STD / pixels[1]).to(torch.get_default_dtype()))
        self.register_buffer("shift", ((MEAN - pixels[0]) / pixels[1]).to(torch.get_default_dtype()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class ExternalNet(Network):
    """A backbone behind its entrance, with a classifier of our own; the weights it came with are left as they are."""

    def __init__(self, backbone: Backbone, num_classes: int, in_channels: int) -> None:
        read = len(backbone.mean)
        if in_channels not in (1, read):
            wanted = "grey" if read == 1 else "grey or RGB"
            raise UserError(f"The network {backbone.name} reads {wanted} images, not images of {in_channels} channels.")
        super().__init__(backbone.stages, backbone.tap_dims, num_classes)
        self.stages = nn.ModuleDict({"entrance": InputAdapter(backbone.mean, backbone.std), **backbone.stages})
        self.backbone_size = backbone.size
        self.recipe = dict(backbone.recipe)
        self.discarded = backbone.discarded
        if list(backbone.stages) == ["map"]:
            self.tap_dims = {}

    def forward(self, x: Tensor) -> Outputs:
        taps: dict[str, Tensor] = {}
        for name, stage in self.stages.items():
            x = stage(x)
            if name in self._wanted_taps:
                taps[name] = x
        feat = x.mean(dim=(2, 3)) if x.ndim == 4 else x
        return Outputs(self.head(feat), feat, taps)

    def never_trained(self) -> frozenset[str]:
        return self.discarded

    def _initialise(self) -> None:
        nn.init.xavier_normal_(self.head.weight)
        nn.init.zeros_(self.head.bias)


def arch_config_of(net: nn.Module) -> dict[str, Any] | None:
    """What a shipped model must keep of a network from elsewhere beside its weights; None for one of ours."""
    return net.recipe if isinstance(net, ExternalNet) else None


@torch.no_grad()
def check_input_size(net: Network, name: str, channels: int, height: int, width: int) -> None:
    """Networks of somebody else's may read only images of one size, or of enough pixels: better said at once."""
    if not isinstance(net, ExternalNet):
        return
    was_training = net.training
    try:
        net.eval()(torch.zeros(1, channels, height, width, device=next(net.buffers()).device))
    except Exception as error:
        fix = "the side it expects" if net.backbone_size is None else str(net.backbone_size)
        raise UserError(
            f"The network {name} cannot read images of {height} x {width} pixels ({_first_line(error)}); "
            f"set data.image_size to {fix}."
        ) from error
    finally:
        net.train(was_training)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
