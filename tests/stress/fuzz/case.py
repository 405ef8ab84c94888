"""What a reader under test is: its valid files, how a damaged one is put before it, and how it is made to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from mutate import mutated


@dataclass(frozen=True)
class Reader:
    """``read`` puts the content where the reader looks, and lets it read."""

    files: Sequence[bytes]
    read: Callable[[bytes], object]
    hostile: Callable[[Random], bytes] | None = None
    """Files that are well-formed on the outside and lie within."""
    text: bool = False
    share: float = 0.4
    """Of hostile cases among all."""

    def case(self, seed: int, name: str, number: int) -> bytes:
        """Always the same content for the same seed, reader and number."""
        rng = Random(f"{seed}/{name}/{number}")
        if number < len(self.files):
            return self.files[number]
        if self.hostile is not None and rng.random() < self.share:
            return self.hostile(rng)
        return mutated(rng, self.files, text=self.text)


Make = Callable[[Path], Reader]
