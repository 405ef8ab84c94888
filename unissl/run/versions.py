"""Versions of everything that can change the numbers of a run."""

from __future__ import annotations

import platform
from importlib.metadata import version

import torch

from unissl import __version__

PACKAGES = ("torch", "numpy", "pillow", "scikit-learn")


def versions() -> dict[str, str | int]:
    """Versions of Python and of the packages, platform and number of threads, as in summary.json."""
    packages = {name: version(name) for name in PACKAGES}
    return {
        "python": platform.python_version(),
        "unissl": __version__,
        **packages,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }
