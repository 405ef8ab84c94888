"""Random numbers with an address: the same for the same key and step, however often training is cut off and resumed."""

from __future__ import annotations

import torch


def keyed_generator(key: int, iteration: int) -> torch.Generator:
    """A generator of its own for a step. ``key`` is drawn once, when a method is built, so the run's seed decides it.

    Torch's generator takes in 32 bits of a seed; the odd multiplier keeps neighbouring keys and steps apart in them.
    """
    return torch.Generator().manual_seed((key + 2654435761 * iteration) % 2**32)
