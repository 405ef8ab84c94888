"""The network as training calls it: compiled, in bfloat16, or plain.

Prediction and checkpoints always use the network itself: nothing here has parameters or state.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from unissl.training.timing import seconds_per_call
from unissl.types import Outputs
from unissl.utils.cache import cache_folder
from unissl.utils.progress import log

MIN_TRAINING_SECONDS = 1800.0
"""Seconds of training from which ``compile = "auto"`` compiles: it takes about a minute on a CPU."""


class CompiledNet:
    """Calls a network through ``call``, in bfloat16 if asked; every attribute is the network's."""

    def __init__(self, net: nn.Module, call: Callable[[Tensor], Outputs], bf16: bool) -> None:
        self.net, self.call, self.bf16 = net, call, bf16

    def __call__(self, x: Tensor) -> Outputs:
        if not self.bf16:
            return self.call(x)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            out = self.call(x)
        dtype = x.dtype  # heads and losses are computed in full precision
        return Outputs(out.logits.to(dtype), out.feat.to(dtype), {name: t.to(dtype) for name, t in out.taps.items()})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.net, name)


def torch_compile(net: nn.Module) -> Callable[[Tensor], Outputs]:
    """The network through torch.compile; compiled code is cached for the next run."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
    return cast(Callable[[Tensor], Outputs], torch.compile(net))


def compile_net(
    net: nn.Module, mode: Literal["off", "on", "auto"], bf16: bool, images: Tensor, steps: int
) -> CompiledNet | None:
    """The network as configured, None for the plain one. It is tried on ``images``, the input of a whole step."""
    plain = CompiledNet(net, cast(Callable[[Tensor], Outputs], net), bf16)
    if mode == "off":
        return plain if bf16 else None
    if mode == "auto" and steps * (eager := seconds_of_pass(plain, images)) < MIN_TRAINING_SECONDS:
        log.info(f"not compiled: {steps} steps of about {eager:.2f} s are too few to repay it")
        return plain if bf16 else None
    compiled = CompiledNet(net, torch_compile(net), bf16)
    start = time.perf_counter()
    forward_and_backward(compiled, images)
    compile_seconds = time.perf_counter() - start
    if mode == "auto" and (seconds := seconds_of_pass(compiled, images)) >= eager:
        log.info(f"compiled in {compile_seconds:.0f} s, but not used: {seconds:.2f} s per pass instead of {eager:.2f}")
        return plain if bf16 else None
    log.info(f"compiled the network in {compile_seconds:.0f} s")
    return compiled


def forward_and_backward(net: CompiledNet, images: Tensor) -> None:
    """One pass over images that changes nothing: gradients are dropped, BatchNorm's statistics restored."""
    before = {name: value.clone() for name, value in net.net.named_buffers()}
    out = net(images)
    torch.autograd.backward(out.logits.sum() + out.feat.sum())
    net.net.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, value in net.net.named_buffers():
            value.copy_(before[name])


def seconds_of_pass(net: CompiledNet, images: Tensor) -> float:
    return seconds_per_call(lambda _: forward_and_backward(net, images))
