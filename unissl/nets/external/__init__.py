"""Pretrained networks from elsewhere, by one notation: ``[source:]name[@weights.safetensors]``.

| written | network |
|---|---|
| ``hf:OWNER/NAME`` or ``hf:FOLDER`` | a vision model of transformers, from its cache or from a folder |
| ``NAME@FILE.safetensors`` | an architecture or backbone of this package with the weights of a file |
| ``package.module:factory`` | the module that a callable returns; the current folder is searched too |
| ``timm:NAME`` | a model of timm; not verified by our tests |

``@FILE.safetensors`` overwrites the weights of any of them. A factory is code: a model that names one is as trustworthy
as the code that it names.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from unissl.errors import UserError, shortened
from unissl.nets.external.adapter import ExternalBackbone, ExternalNet, arch_config_of, check_input_size
from unissl.nets.external.factory import load_factory, load_timm
from unissl.nets.external.hub import HubFeatures, load_hub, local_folder
from unissl.nets.external.safetensors_file import load_architecture, overwrite, read_weights

__all__ = [
    "ExternalBackbone",
    "ExternalNet",
    "NetworkName",
    "arch_config_of",
    "check_input_size",
    "check_trusted_code",
    "describe",
    "load",
    "parse",
]

LIBRARIES = ("hf", "timm")
TRUSTED_CODE = "UNISSL_TRUST_CODE"
"""Environment variable: names of factories, separated by commas, that stored models may call."""
_called_factories: set[str] = set()


@dataclass(frozen=True)
class NetworkName:
    """The parts of a name; ``source`` is empty for architectures of this package."""

    source: str
    name: str
    weights: str | None


def parse(text: str) -> NetworkName | None:
    """The parts of the name of an external network; None for a plain name."""
    plain, _, file = text.partition("@")
    weights = file if file.endswith(".safetensors") else None
    source, colon, name = (text if weights is None else plain).partition(":")
    if not colon:
        return None if weights is None else NetworkName("", source, weights)
    importable = source in LIBRARIES or all(word.isidentifier() for word in [*source.split("."), name])
    if not name or not importable:
        raise UserError(
            f"The network {shortened(text)!r} is not a valid name; write hf:OWNER/NAME, hf:FOLDER, timm:NAME, "
            "package.module:factory or NAME@FILE.safetensors."
        )
    return NetworkName(source, name, weights)


def check_trusted_code(text: str) -> None:
    """Fail where a stored model names a factory, which would be imported and run, that the user has not trusted: by a
    run of the factory in this process, or by its name in the environment."""
    name = parse(text)
    if name is None or name.source in ("", *LIBRARIES):
        return
    factory = f"{name.source}:{name.name}"
    if factory not in {*_called_factories, *os.environ.get(TRUSTED_CODE, "").split(",")}:
        printed = shortened(factory)
        raise UserError(
            f"The model is built by the Python function {printed}, which would be run; if you trust it, repeat the "
            f"command with the environment variable {TRUSTED_CODE}={printed}."
        )


def load(text: str, arch_config: Mapping[str, Any] | None = None) -> ExternalBackbone:
    """The backbone of that name; with the ``arch_config`` of an earlier one, only its architecture.

    The seed is fixed meanwhile: random weights of a factory are the same at every call, and torch's generator is left
    as it was.
    """
    if arch_config is not None or _files_state(text) is None:
        return _load(text, arch_config)
    return copy.deepcopy(describe(text))


def describe(text: str) -> ExternalBackbone:
    """The backbone of that name, shared with later calls, hence only for reading its facts. Its files are loaded again
    only after they have changed."""
    files = _files_state(text)
    return _load(text, None) if files is None else _load_files(text, torch.get_default_dtype(), files)


@lru_cache(maxsize=1)
def _load_files(text: str, dtype: torch.dtype, files: tuple[Any, ...]) -> ExternalBackbone:
    """The backbone that was loaded last stays in memory, by its name, its type and the state of its files."""
    return _load(text, None)


def _files_state(text: str) -> tuple[Any, ...] | None:
    """Paths, sizes and modification times of the files that a backbone is loaded from; None for factories, which may
    return anything."""
    name = parse(text)
    if name is None or name.source not in ("", *LIBRARIES):
        return None
    paths = [] if name.weights is None else [Path(name.weights), Path(name.weights).with_name("manifest.json")]
    if name.source == "hf":
        paths += sorted(Path(local_folder(name.name)).rglob("*"))
    states = []
    for path in paths:
        with suppress(OSError, ValueError):  # a missing file is reported when it is read
            state = path.stat()
            states.append((str(path), state.st_size, state.st_mtime_ns))
    return tuple(states)


def _load(text: str, arch_config: Mapping[str, Any] | None) -> ExternalBackbone:
    name = parse(text)
    if name is None:
        raise ValueError(f"{text!r} is not the name of an external network")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name.source == "":
            assert name.weights is not None
            return load_architecture(text, name.name, name.weights, arch_config)
        if name.source == "hf":
            backbone = load_hub(text, name.name, arch_config)
        elif name.source == "timm":
            backbone = load_timm(text, name.name, arch_config, pretrained=name.weights is None)
        else:
            _called_factories.add(f"{name.source}:{name.name}")
            backbone = load_factory(text, name.source, name.name)
        if name.weights is not None and arch_config is None:
            module = backbone.stages["map"]
            target = module.model if isinstance(module, HubFeatures) else module
            overwrite(target, read_weights(name.weights), name.weights)
        return backbone
