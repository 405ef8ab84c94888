"""BatchNorm, activation and a 3 x 3 convolution fused, for training on a CPU.

Apart from its convolutions, a network waits for memory: torch reads or writes a map about twenty times for the three
layers, forward and backward. Here the activated map is never stored. It is computed image by image where the
convolution needs it, and again in the backward pass, which takes ten passes over memory and a third of the memory.

With mu and s^2 the mean and variance of a channel over the N values of a batch, r = 1 / sqrt(s^2 + eps), a = gamma r,
b = beta - a mu and phi(v) = v where v > 0, else slope v,

    y = conv(phi(a x + b)),
    dL/dx = a (g - mean(g) - (x - mu) r^2 mean(g (x - mu))),   g = phi'(a x + b) dL/dphi,
    dL/dgamma = r sum(g (x - mu)),   dL/dbeta = sum(g).

The result is that of the three layers, to rounding. The layers stay in the network as they are; layers with hooks run
one after the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from unissl.distributed.batch_norm import update_running_stats
from unissl_kernels import winograd

Activation = nn.LeakyReLU | nn.ReLU


def apply_norm_act_conv(norm: nn.BatchNorm2d, activation: Activation, conv: nn.Conv2d, x: Tensor) -> Tensor:
    """``conv(activation(norm(x)))``."""
    if not can_fuse(norm, activation, conv, x):
        out: Tensor = conv(activation(norm(x)))
        return out
    slope = activation.negative_slope if isinstance(activation, nn.LeakyReLU) else 0.0
    mean, var = torch.batch_norm_update_stats(x.detach(), None, None, 0.0)
    y: Tensor = _NormActConv.apply(  # type: ignore[no-untyped-call]
        x, norm.weight, norm.bias, conv.weight, (mean.double(), var.double(), norm.eps, slope)
    )
    update_running_stats(norm, mean, var, x.numel() // x.shape[1])
    return y


def can_fuse(norm: nn.BatchNorm2d, activation: Activation, conv: nn.Conv2d, x: Tensor) -> bool:
    """Whether the kernel applies: in training, for plain layers of the expected types."""
    return (
        norm.training
        and type(norm) is nn.BatchNorm2d
        and type(activation) in (nn.LeakyReLU, nn.ReLU)
        and type(conv) is winograd.Conv3x3
        and not any(_has_hooks(layer) for layer in (norm, activation, conv))
        and winograd.can_use_kernel(x, conv.weight)
        and norm.num_features == x.shape[1]
        and all(p is not None and p.dtype == x.dtype and p.device == x.device for p in (norm.weight, norm.bias))
        and norm.running_mean is not None
    )


def _has_hooks(layer: nn.Module) -> bool:
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return any(hooks) or bool(torch.nn.modules.module._has_any_global_hook())  # type: ignore[no-untyped-call]


class _NormActConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        weight: Tensor,
        constants: tuple[Tensor, Tensor, float, float],
    ) -> Tensor:
        mean, var, eps, slope = constants
        rate = (var + eps).rsqrt()
        scale = gamma.double() * rate
        shift = beta.double() - scale * mean
        affine = winograd.AffineActivation(scale.to(x.dtype), shift.to(x.dtype), mean.to(x.dtype), slope)
        ctx.save_for_backward(x, weight, rate, *affine[:-1])
        ctx.slope = slope
        return winograd.forward(x, weight, affine)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        from unissl_kernels import winograd_ir as code

        x, weight, rate, scale, shift, mean = winograd.saved_tensors(ctx)
        affine = winograd.AffineActivation(scale, shift, mean, ctx.slope)
        g, dweight, sums = winograd.backward(x, weight, dy, affine)
        dbeta, with_x = sums.double().sum(0)
        share = scale.double() / (x.numel() // x.shape[1])
        level, tilt = (share * dbeta).to(x.dtype), (share * rate.square() * with_x).to(x.dtype)
        addresses = (t.data_ptr() for t in (g, x, scale, level, tilt, mean))
        code.through_norm(winograd.shape_of(x, x.shape[1]))(torch.get_num_threads(), len(x), *addresses)
        dgamma = (rate * with_x).to(x.dtype)
        return g, dgamma, dbeta.to(x.dtype), dweight, None
