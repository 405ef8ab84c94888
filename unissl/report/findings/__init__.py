"""Findings of a report: each is a function ``(data: ReportData) -> Finding | None`` with the decorator :func:`finding`.

Every module of this folder is imported, so a finding is added by writing its function (docs/extend/finding.md).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from unissl.report.data import ReportData


@dataclass(frozen=True)
class Finding:
    """Something to know about a run, and what to do about it."""

    level: Literal["problem", "notice"]
    title: str
    text: str
    action: str


FindingFunction = Callable[[ReportData], Finding | None]
_registered: dict[str, FindingFunction] = {}


def finding(function: FindingFunction) -> FindingFunction:
    """Register a function that returns a finding where it applies, and None elsewhere."""
    _registered[f"{function.__module__}.{function.__qualname__}"] = function
    return function


def all_findings() -> list[FindingFunction]:
    """Every registered function, in the order of registration."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return list(_registered.values())


def collect_findings(data: ReportData) -> list[Finding]:
    """All findings that apply to a run, problems first."""
    findings = [function(data) for function in all_findings()]
    return sorted((item for item in findings if item is not None), key=lambda item: item.level != "problem")
