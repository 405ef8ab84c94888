"""unissl datasets, unissl methods: what there is."""

from __future__ import annotations

from rich.console import Console
from rich.table import Column, Table

WIDE = 200
"""Columns where there is no terminal to fit: a pipe or a file should get every word whole."""


def datasets() -> None:
    """List the data sets, whether they are here, and where to get them.

    Example: unissl datasets
    """
    from unissl.data import known

    table = Table(Column("name", no_wrap=True), "classes", "size", "channels", "here", "where")
    for card in known():
        cells = (card.name, card.classes, card.size, card.channels, "yes" if card.present else "no", card.where)
        table.add_row(*(str(cell if cell is not None else "any") for cell in cells))
    show(table)


def methods() -> None:
    """List the methods.

    Example: unissl methods
    """
    from unissl.methods.registry import all_methods

    table = Table(Column("name", no_wrap=True), "method", "venue", "family", "needs", "link")
    for name, method in all_methods().items():
        table.add_row(name, method.title, method.venue, method.family, ", ".join(method.needs) or "-", method.link)
    show(table)


def show(table: Table) -> None:
    console = Console()
    (console if console.is_terminal else Console(width=WIDE)).print(table)
