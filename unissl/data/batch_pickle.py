"""Batches of images that are published as pickles: CIFAR's, and those of the downsampled ImageNet.

A pickle can run any code when it is read, so these are read by an unpickler that knows only the handful of things that
such a batch is made of.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from unissl.errors import UserError


def read_batch(file: IO[bytes], name: str) -> Any:
    """What is pickled in a batch; refuses everything but plain values and numpy arrays."""
    try:
        return _BatchUnpickler(file, encoding="bytes").load()
    except _Forbidden as error:
        raise UserError(f"{name} refers to {error}, as no official batch does; it was not read, delete it.") from None
    except Exception as error:  # a damaged pickle raises nearly every type there is
        raise UserError(f"{name} is damaged ({error}); get it anew.") from None


class _Forbidden(Exception):
    """The name of something that does not belong into a batch."""


def _dtype(code: str | bytes, align: int = 0, copy: int = 0) -> np.dtype[Any]:
    # Python 2 wrote 0 and 1 for the two flags, and bytes for the code; recent numpy wants bools and text.
    return np.dtype(code.decode() if isinstance(code, bytes) else code, bool(align), bool(copy))


def _encode(text: str, encoding: str) -> bytes:
    return text.encode(encoding if encoding == "latin1" else "ascii")


_reconstruct: Any = np.empty(0).__reduce__()[0]  # numpy's own, wherever the installed version keeps it
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
}


class _BatchUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _Forbidden(f"{module}.{name}") from None
