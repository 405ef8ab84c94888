"""Pixels are NumPy arrays on the CPU and tensors on any other device.

The operations are written once, in what both have in common: slices, and operators that work in place. This file has
the rest. Why not tensors everywhere: small images make small arrays, a good part of the time goes into the calls,
and NumPy's calls cost a fraction of torch's. For scattered reads and for counting torch is the faster one even so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = Any
"""An ndarray, or a tensor that is not on the CPU."""
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def from_tensor(values: Tensor) -> Array:
    """The same memory as an ndarray, if it is the CPU's."""
    return values.numpy() if values.device.type == "cpu" else values


def tensor(values: Array) -> Tensor:
    """The same memory as a tensor."""
    return values if isinstance(values, Tensor) else torch.from_numpy(values)


def send(values: npt.NDArray[Any], to: Array) -> Array:
    """Numbers that were computed on the CPU, to where ``to`` is."""
    return torch.from_numpy(values).to(to.device) if isinstance(to, Tensor) else values


def per_image(values: npt.NDArray[Any], dtype: str, to: Array) -> Array:
    """Numbers (n,), sent as (n, 1) to broadcast over flattened images."""
    return send(values.astype(dtype)[:, None], to)


def empty(shape: tuple[int, ...], dtype: str, to: Array) -> Array:
    """Memory where ``to`` is."""
    if isinstance(to, Tensor):
        return torch.empty(shape, dtype=getattr(torch, dtype), device=to.device)
    return np.empty(shape, dtype)


def cast(values: Array, dtype: str) -> Array:
    return values.to(getattr(torch, dtype)) if isinstance(values, Tensor) else values.astype(dtype)


def extremes(values: Array) -> tuple[Array, Array]:
    """Smallest and largest along the second of three axes."""
    if isinstance(values, Tensor):
        return values.amin(1), values.amax(1)
    slices = np.ascontiguousarray(values.swapaxes(0, 1))  # comparing whole slices is vectorised, going along is not
    return np.minimum.reduce(slices), np.maximum.reduce(slices)


def largest(values: Array) -> Array:
    """Along the last of three axes, which stays with length 1."""
    return values.amax(2, keepdim=True) if isinstance(values, Tensor) else values.max(2, keepdims=True)


def running_sum(values: Array) -> Array:
    """Of int32, along the last of three axes."""
    total = tensor(values).cumsum(2, dtype=torch.int32)
    return total if isinstance(values, Tensor) else total.numpy()


def add(first: Array, second: Array, out: Array) -> None:
    (torch if isinstance(out, Tensor) else np).add(first, second, out=out)


def take(source: Array, positions: Array) -> Array:
    """source.ravel()[positions], the positions being int32."""
    found = tensor(source).reshape(-1).index_select(0, tensor(positions).view(-1)).view(positions.shape)
    return found if isinstance(positions, Tensor) else found.numpy()


def count(positions: Array, size: int) -> Array:
    """How often each of 0..size-1 occurs among int32 positions, int32 (size,)."""
    flat = tensor(positions).view(-1)
    if not isinstance(positions, Tensor):
        return flat.bincount(minlength=size).numpy().astype(np.int32)
    # Elsewhere bincount would wait for the device, to learn how long its result is.
    one = torch.ones(1, dtype=torch.int32, device=flat.device)
    counts = torch.zeros(size, dtype=torch.int32, device=flat.device)
    return counts.scatter_add_(0, flat.to(torch.int64), one.expand(len(flat)))
