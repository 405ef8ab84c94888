"""unissl datasets, unissl methods: what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Column, Table

from unissl.cli.printing import echo, show

if TYPE_CHECKING:  # brings numpy, which --help can do without
    from unissl.data import DatasetCard


def datasets(*, markdown: bool = False) -> None:
    """List the data sets by name, whether they are here, and where to get them: digits and Fashion-MNIST for a first
    try, and CIFAR-10, CIFAR-100, SVHN, STL-10, Food-101 and ImageNet-127 of the published comparisons. Nothing is
    downloaded. docs/datasets.md says what of each is read, and how it is split.

    Example: unissl datasets

    Parameters
    ----------
    markdown
        Print the table of docs/datasets.md.
    """
    from unissl.data import known

    head = ("name", "classes", "size", "channels", "where")
    if markdown:
        lines = [head, ("---",) * len(head), *(_facts(card) for card in known())]
        echo("\n".join("| " + " | ".join(line) + " |" for line in lines))
        return
    table = Table(Column(head[0], no_wrap=True), *head[1:-1], "here", head[-1])
    for card in known():
        *facts, where = _facts(card)
        table.add_row(*facts, "yes" if card.present else "no", where)
    show(table)


def _facts(card: DatasetCard) -> tuple[str, ...]:
    return card.name, str(card.classes), str(card.size), str(card.channels), card.where


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
        echo("\n".join("| " + " | ".join(line) + " |" for line in lines))
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
