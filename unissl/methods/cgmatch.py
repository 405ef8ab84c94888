"""CGMatch: pseudo-labels that stay the same over training are usable at low confidence too.

Every image of the pool has a memory of its last predicted classes. The lead of the most frequent class over the second
in it is the count gap. An image with high confidence is easy, and its pseudo-label is used as in FixMatch. One with low
confidence but a large count gap is ambiguous: it was predicted as the same class again and again, so that class is used
with a loss that is robust to wrong labels. The rest is left out. Both thresholds are running means. The memories are
filled in a warm-up that trains on labelled images only.

Paper: Cheng, Lu, Tian, Zhao, Chang and Du, "CGMatch: A Different Perspective of Semi-supervised Learning", CVPR 2025,
https://arxiv.org/abs/2503.02231. Official code: https://github.com/BoCheng-96/CGMatch.

| symbol | name here | equation |
|---|---|---|
| L_s = mean H(y, l(x_w)) | term ``sup`` | |
| p' | ``align`` | uniform distribution alignment, ``ops.alignment`` |
| last Q predictions, count gap | ``memory``, ``Memory.gap`` | most frequent class minus second |
| mu | ``confidence_mean`` | running mean of max p' |
| G | ``gap_mean`` | running mean of the count gap |
| easy: max p' >= mu | term ``unsup`` | mean easy H(argmax p', l(x_s)) |
| ambiguous: max p' < mu, gap >= G | term ``ambiguous`` | mean ambiguous (GCE(l(x_w)) + GCE(l(x_s))) |
| GCE | ``generalised_cross_entropy``, ``exponent`` | (1 - p_y^q) / q |
| w(t) | ``ambiguous_weight`` | lambda_h (share of the time after warm-up)^2 |

Deviations. The warm-up of 2048 steps is a share of the budget, rounded up. The paper predicts the whole pool after each
of its steps; by default we do so at most ``SCANS`` times, evenly up to its end, and never for a prediction that later
ones would overwrite anyway. A memory that is not full yet has fewer entries, where the port counts class 0. Past
confidences enter nothing and are not kept; neither is the port's unused variance. The port files predictions under
wrong images, see ``filing = "sorted"``.
"""

from __future__ import annotations

from math import ceil
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from unissl.methods.base import Context, Method, MethodConfig, Network, forward_concat
from unissl.ops.alignment import UniformAlignment
from unissl.ops.losses import cross_entropy
from unissl.types import Batch, DataInfo, Losses, Step

SCANS = 32
"""Most predictions of the whole pool during warm-up, unless ``scan_every`` is given."""


class CGMatchConfig(MethodConfig):
    name: Literal["cgmatch"] = "cgmatch"
    short_run: ClassVar[dict[str, Any]] = {"momentum": 0.99, "queue": 16}
    paper_run: ClassVar[dict[str, Any]] = {"method": {"scan_every": 1}}
    queue: int = Field(default=1000, ge=1)
    """Q, predictions that the memory of an image holds; a short run needs a size that it can fill."""
    warm_up: float = Field(default=2048 / 2**18, ge=0, lt=1)
    """Fraction of the budget that trains on labelled images only while the memories fill."""
    scan_every: int | None = Field(default=None, ge=1)
    """Warm-up steps between two predictions of the whole pool; by default for at most 32 of them (paper: 1)."""
    momentum: float = Field(default=0.999, ge=0, lt=1)
    """Momentum of both thresholds and of the alignment's mean prediction."""
    threshold_min: float = Field(default=0.0, ge=0, le=1)
    """Least confidence that makes an image easy, whatever the running mean (0.9 on SVHN)."""
    threshold_max: float = Field(default=1.0, ge=0, le=1)
    """Confidence that makes an image easy in any case (0.95 on SVHN)."""
    unsup_weight: float = Field(default=1.0, ge=0)
    """lambda_u, weight of the easy images."""
    ambiguous_weight: float = Field(default=1.0, ge=0)
    """lambda_h, weight of the ambiguous images at the end; it rises from 0 with the square of time."""
    exponent: float = Field(default=0.7, gt=0, le=1)
    """q of the robust loss: near 0 it is the cross-entropy, 1 is the mean absolute error."""
    filing: Literal["own", "sorted"] = "own"
    """Whose memory takes a prediction: its own image's, or, as in the port, the batch's in sorted order."""


class Memory(nn.Module):
    """The last Q predicted classes of every image of the pool, and how often each class is among them."""

    def __init__(self, size: int, length: int, num_classes: int) -> None:
        super().__init__()
        small = torch.uint8 if num_classes <= 256 else torch.int16
        self.ring = nn.Buffer(torch.zeros(size, length, dtype=small))
        self.pushed = nn.Buffer(torch.zeros(size, dtype=torch.int64))
        self.counts = nn.Buffer(torch.zeros(size, num_classes, dtype=torch.int32))

    def push(self, rows: Tensor, labels: Tensor) -> None:
        """Add one prediction (n,) to each of the images (n,); an image may occur more than once."""
        size, length = self.ring.shape
        # An image may occur several times in a batch; if it could fill its whole ring, the batch is cut into chunks.
        chunk_size = len(rows) if len(rows) // size + 2 <= length else length
        for row, label in zip(torch.split(rows, chunk_size), torch.split(labels, chunk_size), strict=True):
            position = self.pushed[row] + (row[:, None] == row).tril(-1).sum(1)
            slots, full = position % length, (position >= length).to(self.counts.dtype)
            self.counts.index_put_((row, self.ring[row, slots].long()), -full, accumulate=True)
            self.counts.index_put_((row, label), torch.ones_like(full), accumulate=True)
            self.ring[row, slots] = label.to(self.ring.dtype)
            self.pushed.index_add_(0, row, torch.ones_like(row))

    def gap(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """Count of the most frequent class minus count of the second, (n,)."""
        first, second = self.counts[rows].topk(2, dim=-1).values.unbind(-1)
        return (first - second).to(torch.get_default_dtype())


def generalised_cross_entropy(logits: Tensor, labels: Tensor, exponent: float) -> Tensor:
    """(1 - p_y^q) / q per sample, (n,), which is bounded and so robust to wrong labels."""
    p = logits.softmax(-1).gather(1, labels[:, None]).squeeze(1).clamp(min=1e-7)
    return (1 - p**exponent) / exponent


class CGMatch(Method):
    Config = CGMatchConfig
    title, venue, family = "CGMatch", "CVPR 2025", "closed-set"
    idea = "also uses low-confidence images whose predictions are stable"
    link = "https://arxiv.org/abs/2503.02231"

    def __init__(self, cfg: CGMatchConfig, info: DataInfo) -> None:
        super().__init__(cfg, info)
        self.align = UniformAlignment(info.num_classes, cfg.momentum)
        self.memory = Memory(info.num_unlabelled, cfg.queue, info.num_classes)
        self.confidence_mean = nn.Buffer(torch.tensor(1 / info.num_classes))
        self.gap_mean = nn.Buffer(torch.tensor(0.0))  # set by the first step after warm-up

    def warm_up_steps(self, total: int) -> int:
        return ceil(float(self.cfg.warm_up) * total)

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        cfg, lb, ulb = self.cfg, batch["labelled"], batch["unlabelled"]
        start = self.warm_up_steps(step.total)
        if step.iteration < start:
            sup = cross_entropy(net(lb.views["weak"]).logits, lb.targets).mean()
            zero = torch.zeros_like(sup.detach())
            return Losses({"sup": sup, "unsup": zero, "ambiguous": zero}, logs={"selected": zero, "ambiguous": zero})

        lb_w, ulb_w, ulb_s = forward_concat(net, lb.views["weak"], ulb.views["weak"], ulb.views["strong"])
        confidence, pseudo = self.align(ulb_w.logits.detach().softmax(-1)).max(-1)
        easy, ambiguous = self.select(ulb.index, confidence, pseudo, first=step.iteration == start)
        robust = [generalised_cross_entropy(view.logits, pseudo, cfg.exponent) for view in (ulb_w, ulb_s)]
        terms = {
            "sup": cross_entropy(lb_w.logits, lb.targets).mean(),
            "unsup": (easy * cross_entropy(ulb_s.logits, pseudo)).mean(),
            "ambiguous": (ambiguous * (robust[0] + robust[1])).mean(),
        }
        progress = (step.iteration - start) / (step.total - start)
        weights = {"unsup": cfg.unsup_weight, "ambiguous": cfg.ambiguous_weight * progress**2}
        return Losses(terms, weights, {"selected": easy.mean(), "ambiguous": ambiguous.mean()})

    @torch.no_grad()
    def select(self, index: Tensor, confidence: Tensor, pseudo: Tensor, *, first: bool) -> tuple[Tensor, Tensor]:
        """Store a batch's predictions, update the thresholds; masks (U,) of easy and of ambiguous images."""
        rows = index if self.cfg.filing == "own" else index.sort().values
        self.memory.push(rows, pseudo)
        gap, keep = self.memory.gap(rows), self.cfg.momentum
        self.confidence_mean.lerp_(confidence.mean(), 1 - keep)
        if first:
            self.gap_mean.copy_(self.memory.gap().mean())
        else:
            self.gap_mean.lerp_(gap.mean(), 1 - keep)
        easy = confidence >= self.confidence_mean.clamp(self.cfg.threshold_min, self.cfg.threshold_max)
        ambiguous = ~easy & (gap >= self.gap_mean)
        return easy.to(confidence.dtype), ambiguous.to(confidence.dtype)

    def after_step(self, ctx: Context) -> None:
        """During warm-up, store a prediction for every image of the pool."""
        steps = self.warm_up_steps(ctx.step.total)
        left = steps - 1 - ctx.step.iteration
        every = self.cfg.scan_every or ceil(steps / SCANS)
        if left < 0 or left % every or left // every >= self.cfg.queue:
            return
        for batch, prediction in ctx.scan("unlabelled", weights="ema"):
            self.memory.push(batch.index, prediction.logits.argmax(-1))
