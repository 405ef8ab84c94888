"""Pretrained networks from elsewhere, by one notation: ``[source:]name[@weights.safetensors]``.

| written | is |
|---|---|
| ``transformers:NAME_OR_FOLDER`` | a vision model of transformers, from a folder or from its cache |
| ``efficientnet-lite0@FILE.safetensors`` | one of our own networks with the weights of a file |
| ``package.module:factory`` | what a callable of yours returns; the current folder is searched too |
| ``timm:NAME`` | a model of timm; not verified by our tests |

``@FILE.safetensors`` overwrites the weights of any of them. A factory is code: a model that names one is as trustworthy
as the code that it names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from unissl.errors import UserError, shortened
from unissl.nets.external.adapter import Backbone, ExternalNet, arch_config_of, check_input_size
from unissl.nets.external.factory import load_factory, load_timm
from unissl.nets.external.hub import HubFeatures, load_hub
from unissl.nets.external.safetensors_file import load_own, overwrite, read_weights

__all__ = [
    "Backbone",
    "ExternalNet",
    "Name",
    "arch_config_of",
    "check_input_size",
    "load",
    "parse",
    "refuse_strange_code",
]

LIBRARIES = ("transformers", "timm")
TRUSTED_CODE = "UNISSL_TRUST_CODE"
"""Environment variable: names of factories, separated by commas, that stored models may call for."""
_called_here: set[str] = set()


@dataclass(frozen=True)
class Name:
    """The parts of a name; ``source`` is empty for our own networks."""

    source: str
    name: str
    weights: str | None


def parse(text: str) -> Name | None:
    """The parts of the name of a network from elsewhere; None for the plain name of one of ours."""
    plain, _, file = text.partition("@")
    weights = file if file.endswith(".safetensors") else None
    source, colon, name = (text if weights is None else plain).partition(":")
    if not colon:
        return None if weights is None else Name("", source, weights)
    importable = source in LIBRARIES or all(word.isidentifier() for word in [*source.split("."), name])
    if not name or not importable:
        raise UserError(
            f"The network {shortened(text)!r} is not written as it should be: transformers:FOLDER, timm:NAME or "
            "package.module:factory, or the name of one of ours and @FILE.safetensors."
        )
    return Name(source, name, weights)


def refuse_strange_code(text: str) -> None:
    """A stored model that names a factory would import and run it. That takes the user's word: a run of the factory in
    this process, or its name in the environment."""
    name = parse(text)
    if name is None or name.source in ("", *LIBRARIES):
        return
    factory = f"{name.source}:{name.name}"
    if factory not in {*_called_here, *os.environ.get(TRUSTED_CODE, "").split(",")}:
        shown = shortened(factory)
        raise UserError(
            f"The model is built by the Python function {shown}, which would be run; if you trust it, repeat the "
            f"command with the environment variable {TRUSTED_CODE}={shown}."
        )


def load(text: str, recipe: Mapping[str, Any] | None = None) -> Backbone:
    """The backbone of that name; with the ``recipe`` of an earlier one, only its shape, to be filled with weights.

    The seed is fixed meanwhile: weights that code draws at random are the same at every call, a run's are not moved.
    """
    name = parse(text)
    if name is None:
        raise ValueError(f"{text!r} is the name of one of our own networks")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _load(text, name, recipe)


def _load(text: str, name: Name, recipe: Mapping[str, Any] | None) -> Backbone:
    if name.source == "":
        assert name.weights is not None
        return load_own(text, name.name, name.weights, recipe)
    if name.source == "transformers":
        backbone = load_hub(text, name.name, recipe)
    elif name.source == "timm":
        backbone = load_timm(text, name.name, recipe, pretrained=name.weights is None)
    else:
        _called_here.add(f"{name.source}:{name.name}")
        backbone = load_factory(text, name.source, name.name)
    if name.weights is not None and recipe is None:
        module = backbone.stages["map"]
        overwrite(module.model if isinstance(module, HubFeatures) else module, read_weights(name.weights), name.weights)
    return backbone
