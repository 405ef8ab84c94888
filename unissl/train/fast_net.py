"""How training calls the network: compiled, in half precision, or plainly.

Prediction always uses the network itself. So do checkpoints: nothing here has parameters or state.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from unissl.data.cache import cache_folder
from unissl.record import own_folder
from unissl.train.budget import seconds_per_call
from unissl.types import Outputs

REPAYS = 1800.0
"""Seconds of training from which ``compile = "auto"`` tries: compiling takes about a minute on a CPU."""


class FastNet:
    """A network that is called in another way; everything else about it is its own."""

    def __init__(self, net: nn.Module, call: Callable[[Tensor], Outputs], half: bool) -> None:
        self.net = net
        self.call = call
        self.half = half

    def __call__(self, x: Tensor) -> Outputs:
        if not self.half:
            return self.call(x)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            out = self.call(x)
        dtype = x.dtype  # heads and losses go on in full precision
        return Outputs(out.logits.to(dtype), out.feat.to(dtype), {name: t.to(dtype) for name, t in out.taps.items()})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.net, name)


def compiled(net: nn.Module) -> Callable[[Tensor], Outputs]:
    """The network through torch.compile; what it makes is kept in the cache folder for the next run."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(own_folder(cache_folder(), "compiled")))
    return cast(Callable[[Tensor], Outputs], torch.compile(net))


def fast_net(
    net: nn.Module,
    compile_: Literal["off", "on", "auto"],
    half: bool,
    images: Tensor,
    steps: int,
    say: Callable[[str], None],
) -> FastNet | None:
    """The network as settings want it called, None for plainly. ``images`` is a whole step's input, to try it on."""
    plain = FastNet(net, cast(Callable[[Tensor], Outputs], net), half)
    if compile_ == "off":
        return plain if half else None
    if compile_ == "auto" and steps * (eager := seconds_of_pass(plain, images)) < REPAYS:
        say(f"not compiled: {steps} steps of about {eager:.2f} s are too few to repay it")
        return plain if half else None
    fast = FastNet(net, compiled(net), half)
    start = time.perf_counter()
    forward_and_backward(fast, images)
    took = time.perf_counter() - start
    if compile_ == "auto" and (quick := seconds_of_pass(fast, images)) >= eager:
        say(f"compiled in {took:.0f} s, but not used: {quick:.2f} s per pass instead of {eager:.2f}")
        return plain if half else None
    say(f"compiled the network in {took:.0f} s")
    return fast


def forward_and_backward(net: FastNet, images: Tensor) -> None:
    """One pass over images that changes nothing: gradients are dropped, BatchNorm's statistics put back."""
    before = {name: value.clone() for name, value in net.net.named_buffers()}
    out = net(images)
    torch.autograd.backward(out.logits.sum() + out.feat.sum())
    net.net.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, value in net.net.named_buffers():
            value.copy_(before[name])


def seconds_of_pass(net: FastNet, images: Tensor) -> float:
    return seconds_per_call(lambda _: forward_and_backward(net, images))
