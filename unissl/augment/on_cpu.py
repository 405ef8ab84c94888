"""Calls of the compiled loop, and whether it is available."""

from __future__ import annotations

from functools import cache
from importlib import import_module

import numpy as np
from torch import Tensor

from unissl.augment.geometry import Floats, Ints, Source, Window
from unissl.augment.randaugment import OPERATIONS


@cache
def has_compiler() -> bool:
    """Whether numba is installed and works: new versions of Python and of NumPy have to wait for it."""
    try:
        import_module("unissl.augment.compiled")
    except ImportError:
        return False
    return True


def crop(images: Tensor, crop_window: Window) -> Tensor:
    """As ``geometry.crop``."""
    from unissl.augment.compiled import crop_all

    out = _like(images, crop_window)
    crop_all(images.numpy(), *crop_window, out.numpy())
    return out


def strong(images: Tensor, crop_window: Window, choice: Ints, magnitudes: Floats, filled: Ints) -> Tensor:
    """As ``geometry.crop``, then ``randaugment``, then ``cutout``."""
    from unissl.augment.compiled import CODES, strong_all

    codes = np.array([CODES[operation.name] if operation.change else -1 for operation in OPERATIONS])
    out = _like(images, crop_window)
    which, source = _moves(choice, magnitudes, *out.shape[1:3])
    operations = (codes[choice], magnitudes, which)
    strong_all(images.numpy(), tuple(crop_window), operations, tuple(source), filled, out.numpy())
    return out


def _like(images: Tensor, crop_window: Window) -> Tensor:
    return images.new_empty(len(images), crop_window.rows.shape[1], crop_window.columns.shape[1], images.shape[3])


def _moves(choice: Ints, magnitudes: Floats, height: int, width: int) -> tuple[Ints, Source]:
    """Sources of all operations that move pixels, and which row of them is whose, (n, slots); -1 for the others."""
    which, sources, rows = np.full(choice.shape, -1), [], 0
    for number, operation in enumerate(OPERATIONS):
        if operation.source:
            moved = choice == number
            sources.append(operation.source(magnitudes[moved], height, width))
            which[moved] = np.arange(rows, rows := rows + len(sources[-1].x))
    return which, Source(*(np.concatenate(parts) for parts in zip(*sources, strict=True)))
