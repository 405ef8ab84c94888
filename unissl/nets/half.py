"""Networks that compute in bfloat16: for views that need not be exact, and for training that is noisy anyway."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from unissl.current_folder import NEUTRAL
from unissl.nets.base import Network
from unissl.nets.efficientnet_lite import EfficientNetLite

NATIVE = ("avx512_bf16", "amx_bf16")
"""Instructions without which a CPU only pretends to compute in bfloat16, and more slowly than in float32."""
SWITCH = "UNISSL_BFLOAT16"
TRIAL = """
import torch
x = torch.randn(8, 32, 16, 16, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
for groups, size in ((1, 3), (32, 5), (1, 1)):
    torch.nn.Conv2d(32, 32, size, groups=groups, dtype=torch.bfloat16)(x)
torch.nn.Linear(64, 64, dtype=torch.bfloat16)(torch.randn(512, 64, dtype=torch.bfloat16)).sum().backward()
"""


def in_half(net: Network) -> Network:
    """A copy in bfloat16 where that is known to be faster, some 1.8 times on two cores; otherwise ``net`` itself.

    Vectors then differ from exact ones by some 4 % of their length: nothing beside what augmentation does to them, but
    too much for an answer that somebody may ask for twice.
    """
    if not isinstance(net, EfficientNetLite):
        return net
    parameter = next(net.parameters())
    able = parameter.dtype == torch.float32 and parameter.device.type == "cpu"
    return copy.deepcopy(net).to(torch.bfloat16) if able and cpu_computes_in_half() else net


def cpu_computes_in_half() -> bool:
    """Whether the CPU has the instructions, may use them, and ``$UNISSL_BFLOAT16`` is not 0."""
    able: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # torch before 2.13 may not have it
    return any(able.get(name, False) for name in NATIVE) and os.environ.get(SWITCH) != "0" and survives(TRIAL)


@lru_cache
def survives(trial: str) -> bool:
    """Whether a process of its own gets through: some virtual machines announce instructions and kill who uses them.

    A torch.py in the current folder is not run for torch: -P leaves that folder out, and the process starts in another,
    for the sake of relative names in $PYTHONPATH. Not -I, which also leaves out $PYTHONPATH and what was installed with
    ``pip --user``, where torch may be; nor a fork, which torch's threads do not survive.
    """
    command = [sys.executable, "-P", "-c", trial]
    try:
        return subprocess.run(command, capture_output=True, timeout=60, cwd=NEUTRAL).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextmanager
def multiplying_in_half(module: nn.Module) -> Iterator[None]:
    """Inside, 1 x 1 convolutions of ``module`` multiply in bfloat16, both ways, on a CPU that is faster in it.

    Weights, gradients and all else stay in float32. Other convolutions of an EfficientNet-Lite are slower in bfloat16.
    """
    changed = [part for part in module.modules() if isinstance(part, nn.Conv2d) and part.kernel_size == (1, 1)]
    parameters = [part.weight for part in changed]
    able = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in parameters)
    changed = changed if able and cpu_computes_in_half() else []
    for part in changed:
        part.forward = partial(_pointwise, part)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for part in changed:
            del part.forward


def _pointwise(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """What the layer gives for (n, c, h, w), stored channels last: a matrix product."""
    half = torch.bfloat16
    bias = None if layer.bias is None else layer.bias.to(half)
    made = linear(x.permute(0, 2, 3, 1).to(half), layer.weight.flatten(1).to(half), bias)
    return made.to(x.dtype).permute(0, 3, 1, 2)
