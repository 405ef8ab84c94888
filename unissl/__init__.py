"""unissl: image classifiers from a handful of labels and many unlabelled images of unknown class mix."""

import importlib

TYPE_CHECKING = False  # not from typing: of ``python -m unissl``, a typing.py in the current folder would be run here
if TYPE_CHECKING:
    from typing import Any

    from unissl.estimators import SAGEClassifier, SemiSupervisedClassifier
    from unissl.run_config import RunConfig, build_config
    from unissl.runs import Run, resume, run

__version__ = "0.1.0"
__all__ = [
    "Run",
    "RunConfig",
    "SAGEClassifier",
    "SemiSupervisedClassifier",
    "__version__",
    "build_config",
    "resume",
    "run",
]


def __getattr__(name: str) -> "Any":
    """Import torch only when something needs it, so that the command line answers at once."""
    if name in {"Run", "resume", "run"}:
        return getattr(importlib.import_module("unissl.runs"), name)
    if name in {"SAGEClassifier", "SemiSupervisedClassifier"}:
        return getattr(importlib.import_module("unissl.estimators"), name)
    if name in {"RunConfig", "build_config"}:
        return getattr(importlib.import_module("unissl.run_config"), name)
    raise AttributeError(f"module 'unissl' has no attribute {name!r}")
