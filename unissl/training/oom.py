"""Out of memory, as a sentence that suggests smaller batches.

Python and NumPy raise MemoryError, torch's CUDA allocator an OutOfMemoryError, its CPU allocator a plain RuntimeError
that only its message tells from others. If the system kills the process instead, nothing is printed; the run resumes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from unissl.batches import BatchConfig
from unissl.errors import UserError

CPU_ALLOCATOR = ("can't allocate memory", "not enough memory")


class OutOfMemory(UserError):
    """The configured batches do not fit into memory."""


@contextmanager
def memory_errors(batch: BatchConfig) -> Iterator[None]:
    """Turn errors of the allocators into :class:`OutOfMemory`; all others pass."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise OutOfMemory(suggestion(batch)) from error
    except RuntimeError as error:
        if not any(words in str(error) for words in CPU_ALLOCATOR):
            raise
        raise OutOfMemory(suggestion(batch)) from error


def suggestion(batch: BatchConfig) -> str:
    """Suggest half of each batch, or smaller images if the batches are single images already."""
    smaller = {name: size // 2 for name, size in batch.model_dump().items() if size > 1}
    if not smaller:
        return (
            "There is not enough memory for a step; use smaller images (--set data.image_size=...) or a smaller --net."
        )
    settings = " ".join(f"--set batch.{name}={size}" for name, size in smaller.items())
    return (
        f"There is not enough memory for batches of {batch.labelled} labelled and {batch.unlabelled} unlabelled images "
        f"(evaluation: {batch.evaluation}); start a new run with smaller ones, for example {settings}."
    )
