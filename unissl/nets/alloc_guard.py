"""A bound on what a description of a network may ask for: sizes in a manifest cost nothing to write."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from unissl.errors import UserError

MAX_ELEMENTS = 1 << 28
"""Weights, buffers and whatever else is made while a model is rebuilt, together; 1 GB as float32."""
_MAKERS = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.randint, torch.randperm,
           torch.arange, torch.linspace, torch.eye}  # fmt: skip


class AllocationGuard(TorchFunctionMode):
    """Counts the numbers of every tensor that is made within, before it is made."""

    def __init__(self, most: int = MAX_ELEMENTS) -> None:
        super().__init__()
        self.left = most

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _MAKERS:
            self.left -= _numbers(func, (*args, *kwargs.values()))
            if self.left < 0:
                raise UserError(
                    f"The model is described with more than {MAX_ELEMENTS:,} numbers, which none of ours has; restore "
                    "its manifest.json or train again."
                )
        return func(*args, **kwargs)


def _numbers(func: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    """How many numbers a call makes: the product of its sizes, which come as one tuple or one by one."""
    sizes = next((part for part in arguments if isinstance(part, tuple | list)), None)
    if sizes is None:
        sizes = [part for part in arguments if type(part) is int]
        if func in (torch.arange, torch.linspace, torch.randperm):
            return max(map(abs, sizes), default=0)
        if func is torch.eye and len(sizes) == 1:
            sizes = sizes * 2
    return math.prod(int(size) for size in sizes)
