"""Weights from a local safetensors file, for an architecture or backbone of this package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from unissl.errors import UserError, shortened
from unissl.nets.backbones.base import IMAGENET_MEAN, IMAGENET_STD
from unissl.nets.backbones.registry import all_backbones
from unissl.nets.external.adapter import ExternalBackbone
from unissl.nets.registry import create_network
from unissl.utils.bounded_io import parse_json, read_text, regular_path

BN_MOMENTUM = 0.1
"""PyTorch's default; a short fine-tuning hardly moves the running statistics."""


def load_architecture(
    name: str, architecture: str, file: str, arch_config: Mapping[str, Any] | None
) -> ExternalBackbone:
    """An architecture with the weights of a file, whose stem determines the number of input channels.

    With the ``arch_config`` of an earlier one, only the architecture, for which the file is not needed.
    """
    state: dict[str, Tensor] = {}
    if arch_config is None:
        state = read_weights(file)
        first = next(iter(create_network(architecture, 1, 3, BN_MOMENTUM).stages.state_dict(prefix="stages.")))
        channels = state[first].shape[1] if first in state and state[first].ndim == 4 else 3
        if channels not in (1, 3):
            raise UserError(f"The weights {file} read images of {channels} channels; use some for grey or RGB images.")
        arch_config = {"channels": channels, **_image_settings(architecture, Path(file), channels)}
    net = create_network(architecture, 1, arch_config["channels"], BN_MOMENTUM)
    if state:
        overwrite(net.stages, {key.removeprefix("stages."): value for key, value in state.items()}, file)
    images = tuple(arch_config["mean"]), tuple(arch_config["std"]), arch_config["size"]
    return ExternalBackbone(
        name, dict(net.stages.items()), net.tap_dims, *images, arch_config, net.untrained_parameters()
    )


def read_weights(file: str) -> dict[str, Tensor]:
    try:
        with regular_path(file) as opened:
            return load_file(opened)
    except (OSError, SafetensorError, ValueError) as error:
        reason = shortened(str(error))
        raise UserError(f"The weights {file} cannot be read ({reason}); give a safetensors file that exists.") from None


def overwrite(module: nn.Module, state: Mapping[str, Tensor], file: str) -> None:
    """Load the tensors of a file into a module. Tensors that the module lacks, such as a classifier, are left out."""
    for name, current in module.state_dict().items():
        tensor = state.get(name)
        if tensor is None:
            raise UserError(
                f"The weights {file} lack {name!r}; they belong to another architecture than the named one."
            )
        if tensor.shape != current.shape:
            raise UserError(
                f"The weights {file} have {name!r} as {tuple(tensor.shape)}, where the named architecture has "
                f"{tuple(current.shape)}; name the architecture that they belong to."
            )
        if tensor.is_floating_point() != current.is_floating_point() or tensor.is_complex() or not _finite(tensor):
            raise UserError(
                f"The weights {file} have values in {name!r} that cannot be weights; download the file again."
            )
    module.load_state_dict({name: state[name] for name in module.state_dict()}, strict=True)


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.to(torch.float64).isfinite().all())


def _image_settings(architecture: str, file: Path, channels: int) -> dict[str, Any]:
    """The normalisation and image size that the weights expect: those of the manifest next to a run's weights, else
    those of the backbone, else ImageNet's."""
    try:
        manifest = parse_json(read_text(file.parent / "manifest.json"))
        mean, std, size = list(manifest["mean"]), list(manifest["std"]), manifest.get("crop", manifest["height"])
        numbers = all(type(number) in (int, float) and abs(number) < 1e6 for number in [*mean, *std])
        if numbers and len(mean) == len(std) == channels and min(std) > 1e-6 and size in range(1, 4097):
            return {"mean": mean, "std": std, "size": size}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    backbone = all_backbones().get(architecture)
    means, stds = (IMAGENET_MEAN, IMAGENET_STD) if backbone is None else (backbone.mean, backbone.std)
    side = None if backbone is None else backbone.image_size
    return {"mean": list(means[:channels]), "std": list(stds[:channels]), "size": side}
