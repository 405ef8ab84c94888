"""FreeMatch: thresholds that follow the model's confidence, and a term that keeps its predictions diverse.

A running mean of the confidence is the global threshold; it is low at first and rises as the model learns. Each class
has its own share of it, according to how much probability the model gives to the class (self-adaptive thresholding).
The fairness term compares the class probabilities of the strong views in use with the running ones, both divided by
the histogram of predicted classes (self-adaptive fairness).

Paper: Wang, Chen, Heng, Hou, Fan, Wu, Wang, Savvides, Shinozaki, Raj, Schiele and Xie, "FreeMatch: Self-adaptive
Thresholding for Semi-supervised Learning", ICLR 2023, https://arxiv.org/abs/2205.07246. Official code:
https://github.com/microsoft/Semi-supervised-learning.

| symbol | name here | equation |
|---|---|---|
| tau_t, global threshold | ``global_threshold`` | running mean of max q, starts at 1/C |
| p~_t, class probabilities | ``probability`` | running mean of q, starts at 1/C |
| h~_t, class histogram | ``histogram`` | running mean of the shares of argmax q, starts at 1/C |
| tau_t(c) | ``thresholds`` | tau_t p~_t(c) / max_c' p~_t(c') |
| L_s = mean H(y, p(x_w)) | ``sup`` | supervised loss |
| L_u = mean 1[max q >= tau_t(argmax q)] H(argmax q, p(x_s)) | ``unsup`` | unlabelled loss |
| L_f = -H(SumNorm(p~/h~), SumNorm(p-/h-)) | ``fair``, ``fairness`` | p-, h-: strong views in use |
| lambda (momentum), w_u, w_f | ``momentum``, ``unsup_weight``, ``fair_weight`` | |

Deviations: none in the terms. L_f is minus a cross entropy, in the paper as in the official code, so it is negative and
training makes the cross entropy larger. As in the official code the running values are updated before they are used, in
L_f too; a class without a prediction gets 0 for 1/0, and 1e-12 stands inside the logarithm. The default ``fair_weight``
is that of the code behind the comparison; the configurations of the official code have 0.001 for small images. They
also limit tau_t to 0.95 on SVHN, which is ``max_threshold``.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from unissl.methods.base import Method, MethodConfig, Network, forward_concat
from unissl.ops.losses import cross_entropy, one_hot
from unissl.types import Batch, DataInfo, Losses, Step


class FreeMatchConfig(MethodConfig):
    name: Literal["freematch"] = "freematch"
    short_run: ClassVar[dict[str, Any]] = {"momentum": 0.99}
    momentum: float = Field(default=0.999, ge=0, lt=1)
    """Momentum of the running confidence, class probabilities and histogram."""
    max_threshold: float = Field(default=1.0, gt=0, le=1)
    """Limit of the global threshold; 1 is none."""
    unsup_weight: float = Field(default=1.0, ge=0)
    """Weight of the unlabelled term."""
    fair_weight: float = Field(default=0.05, ge=0)
    """Weight of the fairness term."""


class FreeMatch(Method):
    Config = FreeMatchConfig
    title, venue, family = "FreeMatch", "ICLR 2023", "closed-set"
    idea = "self-adaptive thresholds and a fairness term"
    link = "https://arxiv.org/abs/2205.07246"

    def __init__(self, cfg: FreeMatchConfig, info: DataInfo) -> None:
        super().__init__(cfg, info)
        share = 1 / info.num_classes
        self.global_threshold = nn.Buffer(torch.tensor(share))
        self.probability = nn.Buffer(torch.full((info.num_classes,), share))
        self.histogram = nn.Buffer(torch.full((info.num_classes,), share))

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        lb, ulb = batch["labelled"], batch["unlabelled"]
        lb_w, ulb_w, ulb_s = forward_concat(net, lb.views["weak"], ulb.views["weak"], ulb.views["strong"])

        probs = ulb_w.logits.detach().softmax(-1)
        self.update(probs)
        confidence, pseudo = probs.max(-1)
        selected = (confidence >= self.thresholds()[pseudo]).to(probs.dtype)
        terms = {
            "sup": cross_entropy(lb_w.logits, lb.targets).mean(),
            "unsup": (selected * cross_entropy(ulb_s.logits, pseudo)).mean(),
            "fair": self.fairness(ulb_s.logits, selected),
        }
        weights = {"unsup": self.cfg.unsup_weight, "fair": self.cfg.fair_weight}
        return Losses(terms, weights, {"selected": selected.mean()})

    def update(self, probs: Tensor) -> None:
        """Update the running values with the weak-view predictions (U, C) of a step."""
        probs = probs.to(self.probability.dtype)
        confidence, pseudo = probs.max(-1)
        self.global_threshold.lerp_(confidence.mean(), 1 - self.cfg.momentum).clamp_(max=self.cfg.max_threshold)
        self.probability.lerp_(probs.mean(0), 1 - self.cfg.momentum)
        self.histogram.lerp_(one_hot(pseudo, probs.shape[-1], probs.dtype).mean(0), 1 - self.cfg.momentum)

    def thresholds(self) -> Tensor:
        """tau_t(c), (C,)."""
        return self.global_threshold * self.probability / self.probability.max()

    def fairness(self, logits: Tensor, selected: Tensor) -> Tensor:
        """L_f of those strong-view logits (U, C) that are selected (U,), 0 if none is; the gradient goes through p-
        only. A weight of 0 in place of a shorter batch: the host need not know how many there are."""
        probs, count = logits.softmax(-1), selected.sum().clamp(min=1)
        shares = selected @ one_hot(probs.argmax(-1), probs.shape[-1], probs.dtype) / count
        expected = sum_norm(self.probability, self.histogram)
        batch = sum_norm(selected @ probs / count, shares)
        return selected.amax() * (expected * (batch + 1e-12).log()).sum()


def sum_norm(probability: Tensor, histogram: Tensor) -> Tensor:
    """probability / histogram (C,), scaled to sum 1; a class with an empty bin has 0."""
    ratio = probability * torch.where(histogram > 0, 1 / histogram, 0)
    return ratio / ratio.sum().clamp(min=1e-30)
