"""BatchNorm over the rows of all processes. (Torch's own SyncBatchNorm refuses tensors on a CPU.)

With mu and s^2 the mean and variance of a channel over the N values of the *global* batch,

    y = gamma xhat + beta,   xhat = (x - mu) / sqrt(s^2 + eps)
    dL/dx = gamma / sqrt(s^2 + eps) (g - mean(g) - xhat mean(g xhat)),   g = dL/dy,

where both means run over the global batch as well. For each channel, processes exchange 2 numbers forwards (mean and
variance of their rows, which is safer than sums of squares) and 2 backwards (sums).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unissl.distributed.group import current
from unissl.distributed.rows import gather, sizes
from unissl.errors import UserError

_global_rows: int | None = None
"""Rows of the global batch while the network runs on the rows of this process."""


@contextmanager
def over_rows(total: int) -> Iterator[None]:
    """Inside, BatchNorm normalises over a global batch of ``total`` rows that is split over the processes."""
    global _global_rows
    before, _global_rows = _global_rows, total
    try:
        yield
    finally:
        _global_rows = before


class GlobalBatchNorm(_BatchNorm):
    """A BatchNorm of any dimension."""

    def forward(self, x: Tensor) -> Tensor:
        by_batch = self.training or self.running_mean is None
        if _global_rows is None or not by_batch:
            return super().forward(x)
        values = [count * (x.numel() // x.shape[1] // len(x)) for count in sizes(_global_rows)]
        y, mean, var = normalise(x, self.weight, self.bias, self.eps, values)
        if self.training and self.running_mean is not None:
            update_running_stats(self, mean, var, sum(values))
        return y

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError("rows and channels are needed")


@torch.no_grad()
def update_running_stats(norm: _BatchNorm, mean: Tensor, var: Tensor, values: int) -> None:
    """Running statistics in torch's convention: momentum is the weight of the new, the variance is unbiased."""
    assert norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    weight = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    # Through .data, as torch does it: an earlier forward pass may have saved the tensors for its backward pass.
    norm.running_mean.data.lerp_(mean.to(norm.running_mean), weight)
    norm.running_var.data.lerp_((var * (values / (values - 1))).to(norm.running_var), weight)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, values: list[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``x`` has the rows of this process; ``values`` are the numbers per channel of each process.

        Returns y, and mean and variance (C,) of the global batch.
        """
        means, variances = gather(_mean_and_variance(_precise(x))).unbind(1)  # (N, C) each
        fraction = torch.tensor(values, dtype=means.dtype, device=means.device)[:, None] / sum(values)
        mean = (fraction * means).sum(0)
        var = (fraction * (variances + (means - mean).square())).sum(0)
        ctx.save_for_backward(x, weight, mean, (var + eps).rsqrt())
        ctx.values, ctx.has_bias = sum(values), bias is not None
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        return nn.functional.batch_norm(x, mean, var, weight, bias, eps=eps), mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale = ctx.saved_tensors
        shape, dims = [1, -1] + [1] * (x.ndim - 2), _all_but_channels(x)
        g = _precise(grads[0])
        xhat = (x - mean.view(shape)).mul_(scale.view(shape))
        local = torch.stack([g.sum(dims), (g * xhat).sum(dims)])  # (2, C)
        mean_g, mean_g_xhat = (gather(local).sum(0) / ctx.values).view(2, *shape)
        slope = (scale if weight is None else scale * weight).view(shape)
        dx = (g - mean_g).sub_(xhat.mul_(mean_g_xhat)).mul_(slope).to(x.dtype)
        # Like those of other layers, the gradients of weight and bias are of local rows; average_gradients comes later.
        dw = None if weight is None else local[1].to(weight)
        return dx, dw, local[0].to(mean) if ctx.has_bias else None, None, None


normalise = cast(Callable[..., tuple[Tensor, Tensor, Tensor]], _Normalise.apply)


def _mean_and_variance(x: Tensor) -> Tensor:
    """(2, C). In two passes, which is several times as fast as torch.var_mean on maps, and as exact."""
    shape, dims = [1, -1] + [1] * (x.ndim - 2), _all_but_channels(x)
    mean = x.mean(dims)
    return torch.stack([mean, (x - mean.view(shape)).square_().mean(dims)])


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.ndim) if dim != 1]


def _precise(x: Tensor) -> Tensor:
    """Half precision is too coarse for sums over a batch."""
    return x if x.dtype == torch.float64 else x.float()


def with_global_batch_norm(net: nn.Module) -> None:
    """Let every BatchNorm of a network run over the rows of all processes; on one process nothing changes."""
    if current().size == 1:
        return
    for norm in net.modules():
        if isinstance(norm, _BatchNorm) and not isinstance(norm, GlobalBatchNorm):
            if type(norm) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
                raise UserError(
                    f"The network's {type(norm).__name__} is a custom BatchNorm, which cannot be computed over several "
                    "processes; use another network, or one process."
                )
            norm.__class__ = GlobalBatchNorm  # it keeps its parameters, buffers and settings
