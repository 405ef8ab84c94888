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


def methods(*, markdown: bool = False) -> None:
    """List the methods.

    Example: unissl methods

    Parameters
    ----------
    markdown
        Print the table of docs/methods.md.
    """
    head = ("name", "method", "venue", "family", "needs", "link")
    if markdown:
        lines = [head, ("---",) * len(head), *method_rows()]
        print("\n".join("| " + " | ".join(line) + " |" for line in lines))
        return
    table = Table(Column(head[0], no_wrap=True), *head[1:])
    for row in method_rows():
        table.add_row(*row)
    show(table)


def method_rows() -> list[tuple[str, ...]]:
    """What the registry says of each method."""
    from unissl.methods.registry import all_methods

    return [
        (name, method.title, method.venue, method.family, ", ".join(sorted(method.needs)) or "-", method.link)
        for name, method in all_methods().items()
    ]


def show(table: Table) -> None:
    console = Console()
    (console if console.is_terminal else Console(width=WIDE)).print(table)
