"""Backbones that code makes: a factory of the user's own, or one of timm's models."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from unissl.errors import UserError
from unissl.nets.foreign.backbone import IMAGENET_MEAN, IMAGENET_STD, Backbone, around


def load_factory(name: str, module_name: str, factory_name: str) -> Backbone:
    """What ``factory()`` returns: images (n, 3, H, W) to (n, D) or (n, D, h, w).

    Its attributes ``mean`` and ``std`` (three numbers each, for pixels in 0..1; ImageNet's if left out) and ``size``
    (a side in pixels) are read.
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
    mean = _three(name, module, "mean", IMAGENET_MEAN)
    std = _three(name, module, "std", IMAGENET_STD)
    return around(name, module, mean, std, getattr(module, "size", None), {"code": _hash_of_code(factory)})


def load_timm(name: str, model: str, recipe: Mapping[str, Any] | None, *, pretrained: bool) -> Backbone:
    """A model of timm without its classifier. Not verified by our tests."""
    try:
        timm: Any = importlib.import_module("timm")
    except Exception as error:  # it fails in many ways where its torchvision does not suit torch
        raise UserError(
            f"The network {name} needs timm, which cannot be imported here; run 'pip install timm', or use "
            "'efficientnet-lite0'."
        ) from error
    try:
        module = timm.create_model(model, pretrained=pretrained and recipe is None, num_classes=0)
        said = timm.data.resolve_model_data_config(module)
    except Exception as error:
        raise UserError(f"timm cannot make {model!r} ({error}); 'timm.list_pretrained()' has the names.") from error
    return around(name, module, said["mean"], said["std"], said["input_size"][-1], {"timm": str(timm.__version__)})


def _three(name: str, module: nn.Module, what: str, default: tuple[float, ...]) -> tuple[float, ...]:
    try:
        numbers = tuple(float(number) for number in getattr(module, what, default))
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) != 3 or (what == "std" and min(numbers) <= 0):
        raise UserError(f"The network {name} has a '{what}' that is not three numbers for red, green and blue.")
    return numbers


def _hash_of_code(factory: object) -> str:
    """Of the file that defines the factory, where there is one: weights alone do not tell what is done with them."""
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
