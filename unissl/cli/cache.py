"""unissl cache: what is kept between runs, and its removal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from unissl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unissl.utils.cache_contents import CacheItem

cache = App(
    name="cache",
    help="List and clear what is kept between runs: decoded images, features, compiled code.",
    help_epilogue="Example: unissl cache\nExample: unissl cache clear --older-than 30",
)


@cache.default
def list_() -> None:
    """List what is kept, by folder or data set, with size and date of the last use."""
    from datetime import datetime

    from rich.table import Column, Table

    from unissl.utils.cache import cache_folder
    from unissl.utils.cache_contents import list_cache
    from unissl.utils.file_names import printable
    from unissl.utils.printing import echo, show

    items = list_cache()
    if items:
        table = Table("images of", "kind", Column("MB", justify="right"), "last used")
        for item in items:
            day = datetime.fromtimestamp(item.used).strftime("%Y-%m-%d %H:%M")
            table.add_row(printable(item.source) or "-", item.kind, f"{item.size / 1e6:,.1f}", day)
        show(table)
    echo(f"{total(items)} in {printable(str(cache_folder()))}; `unissl cache clear --older-than DAYS` or --all removes")


Days = Annotated[float | None, Parameter(name="--older-than")]
Flag = Annotated[bool, Parameter(name="--all", negative="")]


@cache.command
def clear(*, older_than: Days = None, all_: Flag = False) -> None:
    """Remove what is kept; a later run computes it again. Images and run folders are not touched.

    Example: unissl cache clear --older-than 30

    Args:
        older_than: Remove what was not used for so many days.
        all_: Remove everything.
    """
    from unissl.utils.cache_contents import clear_cache
    from unissl.utils.file_names import printable
    from unissl.utils.printing import echo

    if all_ == (older_than is not None):
        raise UserError("Say what to remove: either --older-than DAYS or --all.")
    if older_than is not None and not older_than >= 0:
        raise UserError(f"--older-than {older_than} is no number of days; give 0 or more.")
    removed, kept = clear_cache(older_than or 0.0)
    for item in removed:
        source = f" of {printable(item.source)}" if item.source else ""
        echo(f"removed {item.kind}{source}: {item.size / 1e6:,.1f} MB")
    for item in kept:
        echo(f"kept {printable(item.path.name)}, which a process is building")
    echo(f"removed: {total(removed)}")


def total(items: Sequence[CacheItem]) -> str:
    """Number and size."""
    return f"{len(items)} {'entry' if len(items) == 1 else 'entries'}, {sum(item.size for item in items) / 1e6:,.1f} MB"
