"""Calibrators, one per file; a file in this folder is registered by being here (docs/extend/calibrator.md)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from unissl.evaluation.calibrators.base import Calibrator, log_probabilities
from unissl.evaluation.calibrators.temperature import TemperatureScaling
from unissl.utils.plugins import classes_in_package

__all__ = ["IDENTITY", "Calibrator", "TemperatureScaling", "all_calibrators", "log_probabilities", "read_calibrator"]

IDENTITY = TemperatureScaling(temperature=1.0)
"""Changes no probability: the calibrator of a model for which none was fitted."""


@cache
def all_calibrators() -> dict[str, type[Calibrator]]:
    """Kind -> class, in alphabetical order."""
    return classes_in_package(sys.modules[__name__], Calibrator, "kind")  # type: ignore[type-abstract]


def read_calibrator(entry: Any) -> Calibrator:
    """The calibrator that :meth:`Calibrator.to_manifest` wrote; raises ValueError for anything else."""
    if isinstance(entry, Calibrator):
        return entry
    kinds = all_calibrators()
    if not isinstance(entry, Mapping) or not isinstance(entry.get("kind"), str) or entry["kind"] not in kinds:
        raise ValueError(f"calibration is of no known kind ({', '.join(kinds)})")
    return kinds[entry["kind"]].from_manifest(entry)
