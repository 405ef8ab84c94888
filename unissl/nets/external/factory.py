"""Backbones built by code: a factory of the user, or a model of timm."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch import nn

from unissl.errors import UserError, shortened
from unissl.nets.backbones.base import IMAGENET_MEAN, IMAGENET_STD
from unissl.nets.backbones.registry import DEFAULT_BACKBONE
from unissl.nets.external.adapter import ExternalBackbone, wrap_module
from unissl.nets.external.hub import offline


def load_factory(name: str, module_name: str, factory_name: str) -> ExternalBackbone:
    """The module that ``factory()`` returns: images (n, 3, H, W) to (n, D) or (n, D, h, w).

    Its optional attributes are ``mean`` and ``std`` (three numbers each, for pixels in 0..1; ImageNet's by default) and
    ``size`` (side of the images in pixels).
    """
    with _current_folder_importable():
        try:
            factory = getattr(importlib.import_module(module_name), factory_name)
        except (ImportError, AttributeError) as error:
            raise UserError(
                f"The network {name} cannot be imported ({error}); run the command in the folder of {module_name}, or "
                "install the package."
            ) from error
        module = factory()
    if not isinstance(module, nn.Module):
        raise UserError(f"The factory {name} returns {type(module).__name__}; it must return a torch.nn.Module.")
    mean = _three_numbers(name, module, "mean", IMAGENET_MEAN)
    std = _three_numbers(name, module, "std", IMAGENET_STD)
    return wrap_module(name, module, mean, std, getattr(module, "size", None), {"code": _code_hash(factory)})


def load_timm(name: str, model: str, arch_config: Mapping[str, Any] | None, *, pretrained: bool) -> ExternalBackbone:
    """A model of timm without its classifier. Not verified by our tests."""
    if arch_config is not None and ":" in model:  # of another server or folder, which timm would look for
        raise UserError(
            f"The network {shortened(name)} cannot be rebuilt from a stored model, since it names another place; train "
            "with a name of 'timm.list_models()'."
        )
    try:
        timm: Any = importlib.import_module("timm")
    except Exception as error:  # it fails in many ways where its torchvision does not suit torch
        raise UserError(
            f"The network {name} needs timm, which cannot be imported here; run 'pip install timm', or use "
            f"'{DEFAULT_BACKBONE}'."
        ) from error
    try:
        with nullcontext() if arch_config is None else offline():
            module = timm.create_model(model, pretrained=pretrained and arch_config is None, num_classes=0)
        data = timm.data.resolve_model_data_config(module)
    except Exception as error:
        raise UserError(f"timm cannot create {model!r} ({error}); use a name of 'timm.list_pretrained()'.") from error
    return wrap_module(name, module, data["mean"], data["std"], data["input_size"][-1], {"timm": str(timm.__version__)})


def _three_numbers(name: str, module: nn.Module, attribute: str, default: tuple[float, ...]) -> tuple[float, ...]:
    try:
        numbers = tuple(float(number) for number in getattr(module, attribute, default))
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) != 3 or (attribute == "std" and min(numbers) <= 0):
        raise UserError(f"The network {name} has a '{attribute}' that is not three numbers for red, green and blue.")
    return numbers


def _code_hash(factory: object) -> str:
    """Hash of the file that defines the factory, where there is one: features depend on code as well as on weights."""
    try:
        file = inspect.getsourcefile(factory)  # type: ignore[arg-type]
    except TypeError:
        file = None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    """An installed command does not look there by itself. Behind all else, unlike with ``python -m``: the folder may be
    a stranger's run, whose modules must not take the place of an installed package that the user trusts."""
    here = os.getcwd()
    if here in sys.path:
        yield
        return
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)
