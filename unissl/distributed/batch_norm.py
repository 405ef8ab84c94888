"""BatchNorm over the rows of all processes. (Torch's own SyncBatchNorm refuses tensors on a CPU.)

With mu and s^2 the mean and variance of a channel over the N values of the *global* batch,

    y = gamma xhat + beta,   xhat = (x - mu) / sqrt(s^2 + eps)
    dL/dx = gamma / sqrt(s^2 + eps) (g - mean(g) - xhat mean(g xhat)),   g = dL/dy,

where both means run over the global batch as well: processes exchange 2 numbers per channel forwards (mean and variance
of their own rows, which is safer than sums of squares) and 2 backwards (sums).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unissl.distributed.group import current, talking
from unissl.distributed.rows import sizes
from unissl.errors import UserError

_total: int | None = None
"""Rows of the global batch of which the network is being given some."""


@contextmanager
def over_rows(total: int) -> Iterator[None]:
    """What is normalised in here are rows of a batch of ``total``, shared out over the processes."""
    global _total
    before, _total = _total, total
    try:
        yield
    finally:
        _total = before


class GlobalBatchNorm(_BatchNorm):
    """A BatchNorm of any dimension, with the parameters and buffers of the one that it stands for."""

    def forward(self, x: Tensor) -> Tensor:
        by_batch = self.training or self.running_mean is None
        if _total is None or not by_batch:
            return super().forward(x)
        values = [share * (x.numel() // x.shape[1] // len(x)) for share in sizes(_total)]
        y, mean, var = normalise(x, self.weight, self.bias, self.eps, values)
        if self.training and self.running_mean is not None:
            self._follow(mean, var, sum(values))
        return y

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor, values: int) -> None:
        """Running statistics in torch's convention: momentum is the weight of the new, the variance is unbiased."""
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        weight = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        # As torch's own does it, out of autograd's sight: a pass before this one may have kept the tensors.
        self.running_mean.data.lerp_(mean.to(self.running_mean), weight)
        self.running_var.data.lerp_((var * (values / (values - 1))).to(self.running_var), weight)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError("rows and channels are needed")


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, values: list[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``values`` are the numbers per channel that each process has; also gives mean and variance (C,)."""
        own_var, own_mean = torch.var_mean(_precise(x), _all_but_channels(x), correction=0)
        sent = torch.cat([own_mean, own_var])
        received = sent.new_empty(len(values), len(sent))
        with talking():
            dist.all_gather(list(received.unbind()), sent)
        means, variances = received.chunk(2, 1)
        share = torch.tensor(values, dtype=sent.dtype, device=sent.device)[:, None] / sum(values)
        mean = (share * means).sum(0)
        var = (share * (variances + (means - mean).square())).sum(0)
        ctx.save_for_backward(x, weight, mean, (var + eps).rsqrt())
        ctx.values, ctx.has_bias = sum(values), bias is not None
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        return nn.functional.batch_norm(x, mean, var, weight, bias, eps=eps), mean, var

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        assert grad is not None
        x, weight, mean, scale = ctx.saved_tensors
        along, dims = [1, -1] + [1] * (x.ndim - 2), _all_but_channels(x)
        g = _precise(grad)
        xhat = (x - mean.view(along)) * scale.view(along)
        own = torch.cat([g.sum(dims), (g * xhat).sum(dims)])
        summed = own.clone()
        with talking():
            dist.all_reduce(summed)
        for_bias, for_weight = own.chunk(2)
        mean_g, mean_g_xhat = (summed / ctx.values).chunk(2)
        slope = scale if weight is None else scale * weight
        dx = slope.view(along) * (g - mean_g.view(along) - xhat * mean_g_xhat.view(along))
        dw = None if weight is None else for_weight.to(weight)
        return dx.to(x), dw, for_bias.to(mean) if ctx.has_bias else None, None, None


normalise = cast(Callable[..., tuple[Tensor, Tensor, Tensor]], _Normalise.apply)


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.ndim) if dim != 1]


def _precise(x: Tensor) -> Tensor:
    """Half precision is too coarse for sums over a batch."""
    return x if x.dtype == torch.float64 else x.float()


def with_global_batch_norm(net: nn.Module) -> None:
    """Let every BatchNorm inside a network see the rows of all processes; on a single one nothing changes."""
    if current().size == 1:
        return
    for parent in list(net.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm) and not isinstance(child, GlobalBatchNorm):
                setattr(parent, name, _global(child))


def _global(norm: _BatchNorm) -> GlobalBatchNorm:
    if type(norm) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        raise UserError(
            f"The network's {type(norm).__name__} is a BatchNorm of a kind of its own, which cannot be computed over "
            "several processes; use another network, or one process."
        )
    made = GlobalBatchNorm(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    made.weight, made.bias = norm.weight, norm.bias
    made.running_mean, made.running_var = norm.running_mean, norm.running_var
    made.num_batches_tracked = norm.num_batches_tracked
    return made.train(norm.training)
