"""unissl datasets, unissl methods: what there is."""

from __future__ import annotations


def datasets() -> None:
    """List the data sets, whether they are here, and where to get them.

    Example: unissl datasets
    """
    from rich.console import Console
    from rich.table import Table

    from unissl.data import known

    table = Table("name", "classes", "size", "channels", "here", "where")
    for card in known():
        cells = (card.name, card.classes, card.size, card.channels, "yes" if card.present else "no", card.where)
        table.add_row(*(str(cell if cell is not None else "any") for cell in cells))
    Console().print(table)


def methods() -> None:
    """List the methods.

    Example: unissl methods
    """
    from rich.console import Console
    from rich.table import Table

    from unissl.methods.registry import all_methods

    table = Table("name", "method", "venue", "family", "needs", "link")
    for name, method in all_methods().items():
        table.add_row(name, method.title, method.venue, method.family, ", ".join(method.needs) or "-", method.link)
    Console().print(table)
