"""Which pretrained backbones exist: every module of this folder with a tuple ``BACKBONES``. Adding a file enrols it."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path

from unissl.nets.backbones.base import Backbone


@cache
def all_backbones() -> dict[str, Backbone]:
    """Name -> declaration, in alphabetical order."""
    backbones: dict[str, Backbone] = {}
    for module_info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        module = importlib.import_module(f"unissl.nets.backbones.{module_info.name}")
        for backbone in getattr(module, "BACKBONES", ()):
            if backbone.name in backbones:
                raise ValueError(f"two backbones are called {backbone.name!r}")
            backbones[backbone.name] = backbone
    return dict(sorted(backbones.items()))


def list_backbones() -> list[Backbone]:
    """All pretrained backbones; each has name, installed, image_size, feat_dim, source and licence."""
    return list(all_backbones().values())


def backbone_installed(name: str) -> bool:
    """Whether ``name`` is a pretrained backbone whose weights are installed."""
    return name in all_backbones() and all_backbones()[name].installed


def supports_distillation(name: str) -> bool:
    """Whether ``name`` is a pretrained backbone that declares which of its stages may be trained."""
    return name in all_backbones() and all_backbones()[name].trainable_tail is not None


(DEFAULT_BACKBONE,) = (backbone.name for backbone in list_backbones() if backbone.default)
"""Name of the backbone that is used where none is named."""
(DEFAULT_TEACHER,) = (backbone.name for backbone in list_backbones() if backbone.default_teacher)
"""Name of the backbone of the teacher of a distillation."""
