"""A table before it has a format: title, head, rows of text, notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HOLE = "-"
"""What stands in a cell without a number."""


@dataclass(frozen=True)
class Sheet:
    """Cells are plain text; the first ``words`` columns are words, the others numbers."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    words: int = 1

    def __post_init__(self) -> None:
        if any(len(row) != len(self.head) for row in self.rows):
            raise ValueError("every row must have as many cells as the head")


@dataclass(frozen=True)
class Tables:
    """What a command prints: sheets for people, and the same numbers one per line for programs."""

    sheets: tuple[Sheet, ...]
    tidy: Sheet


def spread(mean: float, sd: float | None, digits: int = 2) -> str:
    """``81.20 ± 1.35``, or the mean alone where there is no deviation."""
    return f"{mean:.{digits}f}" if sd is None else f"{mean:.{digits}f} ± {sd:.{digits}f}"


def plain_rows(rows: Sequence[Sequence[object]]) -> tuple[tuple[str, ...], ...]:
    """Values as text that programs read back: None as nothing, floats with six digits after the point."""

    def text(value: object) -> str:
        if value is None:
            return ""
        return f"{value:.6f}" if isinstance(value, float) else str(value)

    return tuple(tuple(text(value) for value in row) for row in rows)
