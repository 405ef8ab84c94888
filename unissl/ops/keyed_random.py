"""Random numbers with an address: the same key always gives the same numbers, in any process and after any resume."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def uniform_table(seed: int, step: int, stream: str, view: str, rows: int, columns: int) -> Tensor:
    """Uniform numbers in [0, 1), float64 (rows, columns), on the CPU; row r serves the image at global position r.

    The table is filled row by row from a counter-based generator, so a longer table only appends rows: a process
    that holds a part of the batch draws the same numbers for its images as one that holds all of it. Python's own
    ``hash`` of a string changes from process to process, hence the checksum.
    """
    key = np.random.SeedSequence([seed, step, crc32(stream.encode()), crc32(view.encode())])
    generator = np.random.Generator(np.random.Philox(key))
    return torch.from_numpy(generator.random((rows, columns)))


def uniform_rows(keys: npt.NDArray[np.uint64], view: str, columns: int) -> npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1), float64 (n, columns); row r depends on its two integers ``keys[r]`` and the view."""
    tables = [np.random.Philox(np.random.SeedSequence([*map(int, key), crc32(view.encode())])) for key in keys]
    return np.stack([np.random.Generator(table).random(columns) for table in tables])


def keyed_generator(key: int, iteration: int) -> torch.Generator:
    """A generator of its own for a step. ``key`` is drawn once, when a method is built, so the run's seed decides it.

    Torch's generator takes in 32 bits of a seed; the odd multiplier keeps neighbouring keys and steps apart in them.
    """
    return torch.Generator().manual_seed((key + 2654435761 * iteration) % 2**32)
