"""unissl: image classifiers from a handful of labels and many unlabelled images of unknown class distribution."""

import importlib
import os
import sys

TYPE_CHECKING = False  # not from typing: with ``python -m unissl`` a typing.py in the current folder would be run here
if TYPE_CHECKING:
    from typing import Any

    from unissl.api import evaluate, export, list_backbones, list_methods, load, resume, train
    from unissl.estimators import SAGEClassifier, SemiSupervisedClassifier
    from unissl.inference.model import Model
    from unissl.inference.prediction_table import PredictionTable
    from unissl.run.config import RunConfig, build_config
    from unissl.run.pipeline import Run

__version__ = "0.2.0"
__all__ = [
    "Model",
    "PredictionTable",
    "Run",
    "RunConfig",
    "SAGEClassifier",
    "SemiSupervisedClassifier",
    "__version__",
    "build_config",
    "evaluate",
    "export",
    "list_backbones",
    "list_methods",
    "load",
    "resume",
    "train",
]

_HOMES = {
    "unissl.api": ("evaluate", "export", "list_backbones", "list_methods", "load", "resume", "train"),
    "unissl.estimators": ("SAGEClassifier", "SemiSupervisedClassifier"),
    "unissl.inference.model": ("Model",),
    "unissl.inference.prediction_table": ("PredictionTable",),
    "unissl.run.config": ("RunConfig", "build_config"),
    "unissl.run.pipeline": ("Run",),
}


SPINS = 2000
"""Rounds, some tens of microseconds, for which an idle OpenMP thread keeps its core busy before it sleeps."""
if "torch" not in sys.modules and not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
    # libgomp reads this when torch loads it. By default an idle thread spins for milliseconds. Decoding threads, or a
    # second training on the same cores, then need up to fifty times as long; sharing the cores takes twice as long.
    os.environ["GOMP_SPINCOUNT"] = str(SPINS)


def __getattr__(name: str) -> "Any":
    """Import torch only when something needs it, so that the command line answers at once."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'unissl' has no attribute {name!r}")


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})
