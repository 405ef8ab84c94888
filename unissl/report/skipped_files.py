"""Files that were left out, by reason: of a thousand of one kind the single one of another kind must still be seen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SkippedGroup:
    """Files with the same reason, in the order they were met."""

    reason: str
    files: list[str]

    @property
    def count(self) -> int:
        return len(self.files)


def group_skipped_files(skipped: Sequence[Mapping[str, str]]) -> list[SkippedGroup]:
    """The most frequent kind first. What differs from file to file, in brackets or numbers, does not make a kind."""
    found: dict[str, SkippedGroup] = {}
    for item in skipped:
        kind = re.sub(r"\(.*?\)|\d+", "", item["reason"])
        found.setdefault(kind, SkippedGroup(item["reason"], [])).files.append(item["file"])
    return sorted(found.values(), key=lambda trouble: -trouble.count)
