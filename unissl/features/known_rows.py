"""Rows of a cache entry, copied from earlier entries where the same image was seen before, and computed otherwise.

A folder that gains some photos, or whose labelled photos become test images, is another table and another entry. Its
photos are found by a digest of their pixels, so their features are not computed again. Everything else that a row
depends on is in the settings of the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unissl.types import Rows
from unissl.utils.cache import Entry, entries, save_array
from unissl.utils.mmap_rows import row_blocks
from unissl.utils.partial_rows import PartialRows
from unissl.utils.progress import Progress

DIGESTS = "digests"
"""Array of an entry with the digest of each image."""
DIGEST_BYTES = 16
MAX_ENTRIES = 16
"""Earlier entries that are searched, the last used first."""
PER_TABLE = ("pixels", "shape", "rows")
"""Settings that differ between tables whose rows can be shared."""

Bytes = npt.NDArray[np.uint8]
Compute = Callable[[Rows], Iterator[Sequence[npt.NDArray[Any]]]]
"""For rows of the table, in ascending order: blocks (n, ...) for some of them after the other, one for each file."""


def row_digests(images: Any, block: int = 64) -> Bytes:
    """Digests (N, 16) of the images (N, H, W, channels)."""
    digests = [
        blake2b(np.ascontiguousarray(image).data, digest_size=DIGEST_BYTES).digest()
        for rows in row_blocks(images, block)
        for image in rows
    ]
    return np.array([list(digest) for digest in digests], np.uint8).reshape(-1, DIGEST_BYTES)


def digest_keys(digests: Bytes) -> npt.NDArray[np.uint64]:
    """Two integers (n, 2) per digest, to key random numbers by the image."""
    return np.ascontiguousarray(digests).view(np.uint64)


class KnownRows:
    """Where rows of earlier entries of ``kind`` are, for the ``wanted`` rows of a table whose images have these
    ``digests`` (N, 16)."""

    def __init__(self, kind: str, settings: Mapping[str, Any], digests: Bytes, wanted: Rows | None = None) -> None:
        wanted = np.arange(len(digests)) if wanted is None else wanted
        self.digests, self.wanted = digests, wanted
        self.found: list[Entry] = []
        self.entry = np.full(len(digests), -1)
        self.row = np.zeros(len(digests), dtype=np.int64)
        missing: dict[bytes, list[int]] = {}
        for row in wanted:
            missing.setdefault(digests[row].tobytes(), []).append(int(row))
        family = _family(settings)
        for entry in islice(entries(kind), MAX_ENTRIES):
            if DIGESTS not in entry.arrays or _family(entry.settings) != family:
                continue
            self.found.append(entry)
            for row, digest in enumerate(np.asarray(entry.arrays[DIGESTS])):
                for own in missing.pop(digest.tobytes(), ()):
                    self.entry[own], self.row[own] = len(self.found) - 1, row
            if not missing:
                break

    def __contains__(self, row: int) -> bool:
        return bool(self.entry[row] >= 0)

    def read(self, name: str, row: int) -> Bytes:
        """The bytes of a known row in the file ``name``."""
        stored: Bytes = self.found[self.entry[row]].arrays[name][self.row[row]]
        return stored


def _family(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What rows of one table share with those of another: all settings but the images themselves."""
    return {**{key: value for key, value in settings.items() if key not in PER_TABLE}, "size": settings["shape"][1:]}


def write_rows(
    folder: Path, known: KnownRows, row_bytes: Mapping[str, int], compute: Compute, batch: int, title: str
) -> None:
    """Fill the files of an entry, row by row. Rows that are not wanted are zero; on most disks they take no space.

    A stopped build resumes after a multiple of ``batch`` rows.
    """
    digests, wanted = known.digests, known.wanted
    is_wanted = np.zeros(len(digests), dtype=bool)
    is_wanted[wanted] = True
    usable = np.where(is_wanted[:, None], digests, 0)  # a row of zeros must not be taken for the features of its image
    with PartialRows(folder, len(digests), row_bytes, batch) as written:
        missing = np.array([row for row in wanted if row >= written.done and row not in known], dtype=np.int64)
        with Progress(title, len(wanted), int((wanted < written.done).sum())) as progress:
            computed = _one_by_one(compute(missing))
            for start in range(written.done, len(digests), batch):
                rows = range(start, min(start + batch, len(digests)))
                blocks = {name: np.zeros((len(rows), size), np.uint8) for name, size in row_bytes.items()}
                for place, row in enumerate(rows):
                    if is_wanted[row]:
                        stored = (known.read(name, row) for name in row_bytes) if row in known else next(computed)
                        for block, content in zip(blocks.values(), stored, strict=True):
                            block[place] = content
                written.append(list(blocks.values()))
                progress.advance(int(is_wanted[start : start + batch].sum()))
    save_array(folder / f"{DIGESTS}.npy", usable)


def _one_by_one(computed: Iterator[Sequence[npt.NDArray[Any]]]) -> Iterator[list[Bytes]]:
    """The bytes of one row after another, for each file."""
    for blocks in computed:
        as_bytes = [np.ascontiguousarray(block).reshape(len(block), -1).view(np.uint8) for block in blocks]
        for place in range(len(as_bytes[0])):
            yield [block[place] for block in as_bytes]
