"""A bound on the memory that a manifest may request: it may come from anywhere, with any sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from unissl.errors import UserError

MAX_ELEMENTS = 1 << 28
"""Weights, buffers and all other tensors created while a model is rebuilt, together; 1 GB as float32."""
_FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.randint, torch.randperm,
              torch.arange, torch.linspace, torch.eye}  # fmt: skip


class AllocationGuard(TorchFunctionMode):
    """Counts the elements of every tensor that is created inside, before it is created."""

    def __init__(self, max_elements: int = MAX_ELEMENTS) -> None:
        super().__init__()
        self.remaining = max_elements

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES:
            self.remaining -= _count_elements(func, (*args, *kwargs.values()))
            if self.remaining < 0:
                raise UserError(
                    f"The manifest describes a model of more than {MAX_ELEMENTS:,} numbers, more than any of unissl; "
                    "restore its manifest.json or train again."
                )
        return func(*args, **kwargs)


def _count_elements(func: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    """Elements of the tensor that a call creates: the product of its sizes, given as one tuple or one by one."""
    sizes = next((value for value in arguments if isinstance(value, tuple | list)), None)
    if sizes is None:
        sizes = [value for value in arguments if type(value) is int]
        if func in (torch.arange, torch.linspace, torch.randperm):
            return max(map(abs, sizes), default=0)
        if func is torch.eye and len(sizes) == 1:
            sizes = sizes * 2
    return math.prod(int(size) for size in sizes)
