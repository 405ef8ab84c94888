"""Weights from a local safetensors file, for any network whose architecture is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from unissl.errors import UserError, shortened
from unissl.nets.efficientnet_lite import SCALES
from unissl.nets.external.adapter import IMAGENET_MEAN, IMAGENET_STD, Backbone
from unissl.nets.pretrained import MEAN, STD
from unissl.nets.registry import create_network
from unissl.utils.bounded_io import parse_json, read_text

BN_MOMENTUM = 0.1
"""PyTorch's own; running statistics hardly move when a pretrained network is trained on for a while."""


def load_own(name: str, architecture: str, file: str, recipe: Mapping[str, Any] | None) -> Backbone:
    """One of our networks with the weights of a file; its stem says how many channels they read.

    With the ``recipe`` of an earlier one, only its shape, for which the file is not needed.
    """
    state: dict[str, Tensor] = {}
    if recipe is None:
        state = read_weights(file)
        first = next(iter(create_network(architecture, 1, 3, BN_MOMENTUM).stages.state_dict(prefix="stages.")))
        channels = state[first].shape[1] if first in state and state[first].ndim == 4 else 3
        if channels not in (1, 3):
            raise UserError(f"The weights {file} read images of {channels} channels; use some for grey or RGB images.")
        recipe = {"channels": channels, **_image_settings(architecture, Path(file), channels)}
    net = create_network(architecture, 1, recipe["channels"], BN_MOMENTUM)
    if state:
        overwrite(net.stages, {key.removeprefix("stages."): value for key, value in state.items()}, file)
    images = tuple(recipe["mean"]), tuple(recipe["std"]), recipe["size"]
    return Backbone(name, dict(net.stages.items()), net.tap_dims, *images, recipe, net.never_trained())


def read_weights(file: str) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError, ValueError) as error:
        reason = shortened(str(error))
        raise UserError(f"The weights {file} cannot be read ({reason}); give a safetensors file that exists.") from None


def overwrite(module: nn.Module, state: Mapping[str, Tensor], file: str) -> None:
    """Put the tensors of a file into a module. Those it has no place for, such as a classifier, are left out."""
    for name, wanted in module.state_dict().items():
        given = state.get(name)
        if given is None:
            raise UserError(f"The weights {file} lack {name!r}; they are of another architecture than the one named.")
        if given.shape != wanted.shape:
            raise UserError(
                f"The weights {file} have {name!r} as {tuple(given.shape)}, where the architecture named has "
                f"{tuple(wanted.shape)}; name the one they are of."
            )
        if given.is_floating_point() != wanted.is_floating_point() or given.is_complex() or not _finite(given):
            raise UserError(f"The weights {file} have {name!r} as values that are no weights; get the file anew.")
    module.load_state_dict({name: state[name] for name in module.state_dict()}, strict=True)


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.to(torch.float64).isfinite().all())


def _image_settings(architecture: str, file: Path, channels: int) -> dict[str, Any]:
    """What the weights expect: as the manifest beside them says, where they are a run's own, else by convention."""
    conventional = ((MEAN,) * 3, (STD,) * 3) if architecture in SCALES else (IMAGENET_MEAN, IMAGENET_STD)
    try:
        manifest = parse_json(read_text(file.parent / "manifest.json"))
        mean, std, size = list(manifest["mean"]), list(manifest["std"]), manifest.get("crop", manifest["height"])
        numbers = all(type(number) in (int, float) and abs(number) < 1e6 for number in [*mean, *std])
        if numbers and len(mean) == len(std) == channels and min(std) > 1e-6 and size in range(1, 4097):
            return {"mean": mean, "std": std, "size": size}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return {"mean": list(conventional[0][:channels]), "std": list(conventional[1][:channels]), "size": None}
