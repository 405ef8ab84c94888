"""unissl datasets, unissl methods: what there is."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Column, Table

from unissl.utils.printing import echo, show


def datasets(*, markdown: bool = False) -> None:
    """List the data sets by name, whether they are here, and where to get them: digits and Fashion-MNIST for a first
    try, and CIFAR-10, CIFAR-100, SVHN, STL-10, Food-101 and ImageNet-127 of the published comparisons. Nothing is
    downloaded. docs/datasets.md says what of each is read, and how it is split.

    Example: unissl datasets

    Args:
        markdown: Print the table of docs/datasets.md.
    """
    from unissl.data import known

    head = ("name", "classes", "size", "channels", *(() if markdown else ("here",)), "where")
    rows = []
    for card in known():
        here = () if markdown else ("yes" if card.present else "no",)
        rows.append((card.name, str(card.classes), str(card.size), str(card.channels), *here, card.where))
    _print(head, rows, markdown)


def methods(*, markdown: bool = False) -> None:
    """List the methods.

    Example: unissl methods

    Args:
        markdown: Print the table of docs/methods.md.
    """
    from unissl.methods.registry import all_methods

    head = ("name", "method", "venue", "family", "needs", "link")
    rows = [
        (name, method.title, method.venue, method.family, ", ".join(sorted(method.needs)) or "-", method.link)
        for name, method in all_methods().items()
    ]
    _print(head, rows, markdown)


def _print(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], markdown: bool) -> None:
    if markdown:
        lines = [head, ("---",) * len(head), *rows]
        echo("\n".join("| " + " | ".join(line) + " |" for line in lines))
        return
    table = Table(Column(head[0], no_wrap=True), *head[1:])
    for row in rows:
        table.add_row(*row)
    show(table)
