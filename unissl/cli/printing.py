"""What the verbs print with rich: class names and paths appear as they are, never read as markup or emoji codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a verb that prints no table needs no rich
    from rich.console import Console
    from rich.table import Table

WIDE = 200
"""Columns where there is no terminal to fit: a pipe or a file should get every word whole."""


def plain_console(**options: Any) -> Console:
    """A console for text that is not ours: ``cat [tabby]`` and ``:cat:`` are printed letter by letter."""
    from rich.console import Console

    return Console(markup=False, emoji=False, **options)


def show(table: Table) -> None:
    """Print a table, as wide as the terminal, or wide enough for every word where there is none."""
    console = plain_console()
    (console if console.is_terminal else plain_console(width=WIDE)).print(table)
