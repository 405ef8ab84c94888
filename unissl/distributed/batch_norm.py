"""BatchNorm over the rows of all shards. (Torch's own SyncBatchNorm refuses tensors on a CPU.)

With mu and s^2 the mean and variance of a channel over the N values of the *global* batch,

    y = gamma xhat + beta,   xhat = (x - mu) / sqrt(s^2 + eps)
    dL/dx = gamma / sqrt(s^2 + eps) (g - mean(g) - xhat mean(g xhat)),   g = dL/dy,

where both means run over the global batch as well: for each channel and shard, processes exchange 2 numbers forwards
(mean and variance of its rows, which is safer than sums of squares) and 2 backwards (sums), and add up those of all
shards in their order.
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
from unissl.distributed.shards import Shards, pieces_of
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
        xs = pieces_of(x)
        values = [share * (xs[0].numel() // xs[0].shape[1] // len(xs[0])) for share in sizes(_total)]
        *ys, mean, var = normalise(self.weight, self.bias, self.eps, values, *xs)
        if self.training and self.running_mean is not None:
            update_running_stats(self, mean, var, sum(values))
        return x.like(ys) if isinstance(x, Shards) else ys[0]

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError("rows and channels are needed")


@torch.no_grad()
def update_running_stats(norm: _BatchNorm, mean: Tensor, var: Tensor, values: int) -> None:
    """Running statistics in torch's convention: momentum is the weight of the new, the variance is unbiased."""
    assert norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    weight = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    # As torch's own does it, out of autograd's sight: a pass before this one may have kept the tensors.
    norm.running_mean.data.lerp_(mean.to(norm.running_mean), weight)
    norm.running_var.data.lerp_((var * (values / (values - 1))).to(norm.running_var), weight)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor | None, bias: Tensor | None, eps: float, values: list[int], *xs: Tensor
    ) -> tuple[Tensor, ...]:
        """``xs`` are the shards of this process, ``values`` the numbers per channel that each shard of all has.

        Gives y of each, and mean and variance (C,).
        """
        means, variances = gather(torch.stack([_mean_and_variance(_precise(x)) for x in xs])).unbind(1)  # (V, C) each
        share = torch.tensor(values, dtype=means.dtype, device=means.device)[:, None] / sum(values)
        mean = (share * means).sum(0)
        var = (share * (variances + (means - mean).square())).sum(0)
        ctx.save_for_backward(weight, mean, (var + eps).rsqrt(), *xs)
        ctx.values, ctx.has_bias = sum(values), bias is not None
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        return *(nn.functional.batch_norm(x, mean, var, weight, bias, eps=eps) for x in xs), mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weight, mean, scale, *xs = ctx.saved_tensors
        along, dims = [1, -1] + [1] * (xs[0].ndim - 2), _all_but_channels(xs[0])
        gs = [_precise(grad) for grad in grads[: len(xs)]]
        xhats = [(x - mean.view(along)).mul_(scale.view(along)) for x in xs]
        pairs = list(zip(gs, xhats, strict=True))
        own = torch.stack([torch.stack([g.sum(dims), (g * xhat).sum(dims)]) for g, xhat in pairs])
        summed = gather(own).sum(0)  # (2, C)
        mean_g, mean_g_xhat = (summed / ctx.values).view(2, *along)
        slope = (scale if weight is None else scale * weight).view(along)
        dxs = [(g - mean_g).sub_(xhat.mul_(mean_g_xhat)).mul_(slope).to(xs[0].dtype) for g, xhat in pairs]
        # Parameters of other layers have, so far, the gradient of own rows, or with fixed shards that of all of them.
        for_bias, for_weight = summed if current().fixed_shards else own.sum(0)
        dw = None if weight is None else for_weight.to(weight)
        return dw, for_bias.to(mean) if ctx.has_bias else None, None, None, *dxs


normalise = cast(Callable[..., tuple[Tensor, ...]], _Normalise.apply)


def _mean_and_variance(x: Tensor) -> Tensor:
    """(2, C). In two passes, which is several times as fast as torch.var_mean on maps, and as exact."""
    along, dims = [1, -1] + [1] * (x.ndim - 2), _all_but_channels(x)
    mean = x.mean(dims)
    return torch.stack([mean, (x - mean.view(along)).square_().mean(dims)])


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.ndim) if dim != 1]


def _precise(x: Tensor) -> Tensor:
    """Half precision is too coarse for sums over a batch."""
    return x if x.dtype == torch.float64 else x.float()


def with_global_batch_norm(net: nn.Module) -> None:
    """Let every BatchNorm inside a network see the rows of all shards; with a single one nothing changes."""
    if current().shards == 1:
        return
    for parent in list(net.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm) and not isinstance(child, GlobalBatchNorm):
                setattr(parent, name, _global(child))


def _global(norm: _BatchNorm) -> GlobalBatchNorm:
    if type(norm) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        raise UserError(
            f"The network's {type(norm).__name__} is a BatchNorm of a kind of its own, which cannot be computed over "
            "several processes or shards; use another network, or one process without machine.shards."
        )
    made = GlobalBatchNorm(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    made.weight, made.bias = norm.weight, norm.bias
    made.running_mean, made.running_var = norm.running_mean, norm.running_var
    made.num_batches_tracked = norm.num_batches_tracked
    return made.train(norm.training)
