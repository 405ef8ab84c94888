"""One thing to know about a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """Something to know about the run and what to do about it."""

    level: Literal["problem", "notice"]
    title: str
    text: str
    action: str
