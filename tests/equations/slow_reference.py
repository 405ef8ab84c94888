"""Slow, obvious arithmetic for whole steps of a method: one row at a time, float64, stop-gradients written out.

Rows are 1-D tensors, so that autograd gives the reference's gradient as well as its value. Only the parameters are
taken from the modules under test; what is done with them is written here from the papers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unissl.types import Batch, Outputs, Step, Stream, StreamBatch

Row = Tensor
PIXELS = (1, 2, 3)
START, END = Step(0, 256, 0, 256), Step(255, 256, 255, 256)


class TinyNet(nn.Module):
    """x -> feature BN(W x) -> logits: a network with one BatchNorm, small enough for loops."""

    def __init__(self, feat_dim: int, num_classes: int) -> None:
        super().__init__()
        self.feat_dim = feat_dim
        self.first = nn.Linear(PIXELS[0] * PIXELS[1] * PIXELS[2], feat_dim)
        self.norm = nn.BatchNorm1d(feat_dim)
        self.head = nn.Linear(feat_dim, num_classes)
        nn.init.normal_(self.head.weight)  # confidences from low to high

    def forward(self, x: Tensor) -> Outputs:
        feat = self.norm(self.first(x.flatten(1)))
        return Outputs(self.head(feat), feat)


def draw_batch(
    streams: dict[str, Stream], num_classes: int, sizes: dict[str, int], seed: int, requires_grad: bool = False
) -> Batch:
    """Independent Gaussian images for every view, labels that run through the classes."""
    generator = torch.Generator().manual_seed(seed)
    batch = {}
    for name, stream in streams.items():
        n = sizes[name]
        views = {view: torch.randn(n, *PIXELS, generator=generator) for view in stream.views}
        for view in views.values():
            view.requires_grad_(requires_grad)
        target = None
        if stream.source != "unlabelled":
            target = torch.eye(num_classes)[(torch.arange(n) + seed) % num_classes]
        batch[name] = StreamBatch(views, torch.arange(n), target)
    return batch


def affine(layer: nn.Linear, row: Row) -> Row:
    return torch.stack([(weights * row).sum() for weights in layer.weight]) + layer.bias


def batch_norm(layer: nn.BatchNorm1d, rows: list[Row]) -> list[Row]:
    """Training mode: mean and biased variance of exactly these rows."""
    mean = sum(rows, torch.zeros_like(rows[0])) / len(rows)
    var = sum(((row - mean) ** 2 for row in rows), torch.zeros_like(rows[0])) / len(rows)
    return [(row - mean) / (var + layer.eps).sqrt() * layer.weight + layer.bias for row in rows]


def features(net: TinyNet, images: list[Tensor]) -> list[Row]:
    """Features of one joint batch."""
    return batch_norm(net.norm, [affine(net.first, image.flatten()) for image in images])


def softmax(logits: Row) -> list[float]:
    exponentials = [float(torch.exp(value - logits.max())) for value in logits]
    return [value / sum(exponentials) for value in exponentials]


def entropy(target: list[float], logits: Row) -> Tensor:
    """H(t, l) = -sum_c t_c log softmax(l)_c."""
    log_total = torch.log(sum((torch.exp(value) for value in logits), torch.zeros(())))
    return -sum((t * (value - log_total) for t, value in zip(target, logits, strict=True)), torch.zeros(()))


def spread(label: int, num_classes: int, eps: float) -> list[float]:
    """1 - eps on the label, eps/(C-1) on each other class."""
    return [1 - eps if c == label else eps / (num_classes - 1) for c in range(num_classes)]


def mean(values: list[Tensor]) -> Tensor:
    return sum(values, torch.zeros(())) / len(values)


def gradients(loss: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """One gradient per input, zeros where the loss does not depend on it."""
    found = torch.autograd.grad(loss, inputs, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]
