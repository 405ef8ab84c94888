"""Numbers and lists in the text of a report."""

from __future__ import annotations

from collections.abc import Sequence


def percent(fraction: float, digits: int = 1) -> str:
    """0.5 -> 50.0 %."""
    return f"{100 * fraction:.{digits}f} %"


def signed(difference: float) -> str:
    """A difference of fractions in points, with its sign."""
    return f"{100 * difference:+.1f}".replace("-", "−")


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """1 file, 2,000 files."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def listing(names: Sequence[str], limit: int = 5) -> str:
    """“a”, “b” and 3 more."""
    quoted = [f"“{name}”" for name in names[:limit]]
    if len(names) > limit:
        return f"{', '.join(quoted)} and {len(names) - limit} more"
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
