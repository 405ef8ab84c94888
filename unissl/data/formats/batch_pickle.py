"""Batches of images that are published as pickles: CIFAR's, and those of the downsampled ImageNet.

A pickle can run any code when it is unpickled, so these are not: see :mod:`unissl.data.formats.restricted_pickle`.
"""

from __future__ import annotations

from typing import IO, Any

from unissl.data.formats.restricted_pickle import Damaged, Forbidden, read_plain
from unissl.errors import UserError, shortened
from unissl.utils.bounded_io import read_at_most

MOST_BYTES = 2 << 30
"""Length of a batch; the longest, of ImageNet at 64 x 64 pixels, has three quarters of it."""


def read_batch(file: IO[bytes], name: str) -> Any:
    """What is pickled in a batch; refuses everything but plain values and arrays of numbers."""
    content = read_at_most(file, MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise UserError(f"{name} is longer than any official batch; get it anew.")
    return values(content, name)


def values(content: bytes, name: str) -> Any:
    try:
        return read_plain(content)
    except Forbidden as error:
        what = shortened(str(error))
        raise UserError(f"{name} refers to {what}, as no official batch does; it was not read, delete it.") from None
    except Damaged as error:
        raise UserError(f"{name} is damaged ({shortened(str(error))}); get it anew.") from None
