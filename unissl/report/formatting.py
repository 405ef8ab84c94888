"""How the report writes numbers and lists."""

from __future__ import annotations

from collections.abc import Sequence


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def signed(difference: float) -> str:
    """A difference of shares in points."""
    return f"{100 * difference:+.1f}".replace("-", "−")


def counted(number: int, one: str, many: str | None = None) -> str:
    """1 file, 2,000 files."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listing(names: Sequence[str], most: int = 5) -> str:
    """“a”, “b” and 3 more."""
    quoted = [f"“{name}”" for name in names[:most]]
    if len(names) > most:
        return f"{', '.join(quoted)} and {len(names) - most} more"
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
