"""Networks that compute in bfloat16: for augmented views, which need not be exact, and for distillation, which is noisy
anyway."""

from __future__ import annotations

import atexit
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

from unissl.errors import UserError
from unissl.nets.base import Network
from unissl.utils.current_folder import NEUTRAL

NATIVE = ("avx512_bf16", "amx_bf16")
"""Instructions without which a CPU emulates bfloat16, more slowly than float32."""
SWITCH = "UNISSL_DISABLE_BF16"
CANNOT_FOLLOW = (
    "This run computes in bfloat16 (machine.bf16 = true), which this machine does not allow now; continue on one that "
    f"does, without ${SWITCH}, or add --set machine.bf16=false for slightly different results in float32."
)
TRIAL_SECONDS = 60.0
TRIAL = """
import torch
x = torch.randn(8, 32, 16, 16, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
for groups, size in ((1, 3), (32, 5), (1, 1)):
    torch.nn.Conv2d(32, 32, size, groups=groups, dtype=torch.bfloat16)(x)
torch.nn.Linear(64, 64, dtype=torch.bfloat16)(torch.randn(512, 64, dtype=torch.bfloat16)).sum().backward()
"""


def to_bf16(net: Network, allowed: bool | None = None) -> Network:
    """A copy in bfloat16 where that is safe and faster, some 1.8 times on two cores; otherwise ``net`` itself.

    ``allowed`` is the decision of a run (``machine.bf16``); without one, the CPU is asked.

    Its features differ from exact ones by some 4 % of their norm: small against the effect of augmentation, but too
    much for predictions that must be reproducible.
    """
    if net.backbone is None or not net.backbone.bf16_safe:
        return net
    parameter = next(net.parameters())
    supported = parameter.dtype == torch.float32 and parameter.device.type == "cpu" and is_used(allowed)
    return copy.deepcopy(net).to(torch.bfloat16) if supported else net


def cpu_supports_bf16() -> bool:
    """Whether the CPU has the instructions, may use them, and ``$UNISSL_DISABLE_BF16`` is not 1."""
    return _is_announced() and survives(TRIAL)


def start_trial() -> None:
    """Start the trial that :func:`cpu_supports_bf16` waits for, so that it runs beside other work."""
    if _is_announced():
        _start(TRIAL)


def _is_announced() -> bool:
    flags: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.8 does not have it
    return any(flags.get(name, False) for name in NATIVE) and os.environ.get(SWITCH) != "1"


def is_used(allowed: bool | None) -> bool:
    """Whether to compute in bfloat16: as decided before or, without a decision, as the CPU allows.

    A decision that this CPU cannot follow fails: float32 in its place would change the results without a word.
    """
    if allowed and not cpu_supports_bf16():
        raise UserError(CANNOT_FOLLOW)
    return cpu_supports_bf16() if allowed is None else allowed


@lru_cache
def survives(trial: str) -> bool:
    """Whether a process of its own gets through: some virtual machines announce instructions and kill who uses them.

    A torch.py in the current folder is not run for torch: -P leaves that folder out, and the process starts in another,
    for the sake of relative names in $PYTHONPATH. Not -I, which also leaves out $PYTHONPATH and what was installed with
    ``pip --user``, where torch may be; nor a fork, which torch's threads do not survive.
    """
    process = _start(trial)
    if process is None:
        return False
    try:
        return process.wait(timeout=TRIAL_SECONDS) == 0
    except subprocess.TimeoutExpired:
        _end(process)
        return False


@lru_cache
def _start(trial: str) -> subprocess.Popen[bytes] | None:
    """The process of a trial; None where the system starts none."""
    command, silent = [sys.executable, "-P", "-c", trial], subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent, cwd=NEUTRAL)
    except OSError:
        return None
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave no process behind that nobody waited for."""
    process.kill()
    process.wait()


@contextmanager
def bf16_matmul(module: nn.Module, allowed: bool | None = None) -> Iterator[None]:
    """Inside, 1 x 1 convolutions of ``module`` multiply in bfloat16, forward and backward, on a CPU that supports it,
    unless ``allowed`` is false.

    Weights, gradients and all other layers stay in float32: depthwise convolutions are slower in bfloat16.
    """
    pointwise = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1)]
    weights = [layer.weight for layer in pointwise]
    supported = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in weights)
    pointwise = pointwise if supported and is_used(allowed) else []
    for layer in pointwise:
        layer.forward = partial(_pointwise_forward, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in pointwise:
            del layer.forward


def _pointwise_forward(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """The 1 x 1 convolution of (n, c, h, w), stored channels last, as a matrix product."""
    bf16 = torch.bfloat16
    bias = None if layer.bias is None else layer.bias.to(bf16)
    y = linear(x.permute(0, 2, 3, 1).to(bf16), layer.weight.flatten(1).to(bf16), bias)
    return y.to(x.dtype).permute(0, 3, 1, 2)
