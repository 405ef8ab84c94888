"""What the verbs print: class names and paths appear as they are, never read as markup or emoji codes, and with their
control characters escaped, so that no name moves the cursor or changes the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from unissl.errors import visible

if TYPE_CHECKING:  # a verb that prints no table needs no rich
    from rich.console import Console
    from rich.table import Table

WIDE = 200
"""Columns where there is no terminal to fit: a pipe or a file should get every word whole."""
LAYOUT = "\n\t"
"""Control characters of our own texts."""


def echo(text: object, *, err: bool = False, end: str = "\n") -> None:
    """Print a text with its control characters escaped; verbs use this in place of ``print``."""
    print(visible(str(text), keep=LAYOUT), file=sys.stderr if err else sys.stdout, end=end, flush=True)


def plain_console(**options: Any) -> Console:
    """A console for text that is not ours: ``cat [tabby]`` and ``:cat:`` are printed letter by letter."""
    from rich.console import Console
    from rich.text import Text

    class PlainConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible(text, keep=LAYOUT), **options)

    return PlainConsole(markup=False, emoji=False, **options)


def show(table: Table) -> None:
    """Print a table, as wide as the terminal, or wide enough for every word where there is none."""
    console = plain_console()
    (console if console.is_terminal else plain_console(width=WIDE)).print(table)
