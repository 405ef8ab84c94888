"""Files that were left out, by reason: of a thousand of one kind the single one of another kind must still be seen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Trouble:
    """Files with the same reason, in the order they were met."""

    reason: str
    files: list[str]

    @property
    def count(self) -> int:
        return len(self.files)


def kinds_of_trouble(skipped: Sequence[Mapping[str, str]]) -> list[Trouble]:
    """The most frequent kind first. What differs from file to file, in brackets or numbers, does not make a kind."""
    found: dict[str, Trouble] = {}
    for item in skipped:
        kind = re.sub(r"\(.*?\)|\d+", "", item["reason"])
        found.setdefault(kind, Trouble(item["reason"], [])).files.append(item["file"])
    return sorted(found.values(), key=lambda trouble: -trouble.count)
