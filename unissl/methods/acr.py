"""ACR: a balanced classifier beside a standard one, with pseudo-labels that adapt to the pool's class distribution.

Two heads share one feature. The standard head learns the labelled classes as they come, the balanced head with logit
adjustment, so that it favours no class; the balanced one predicts. Pseudo-labels come from the standard head with part
of the labelled prior removed. For the balanced head that part is fixed. For the standard head it follows the pool: the
further the balanced head's confident predictions are from the labelled class distribution, the more is removed.

Paper: Wei and Gan, "Towards Realistic Long-Tailed Semi-Supervised Learning: Consistency Is All You Need", CVPR 2023,
https://doi.org/10.1109/CVPR52729.2023.00338. Official code: https://github.com/Gank0078/ACR.

| symbol | name here | equation |
|---|---|---|
| l, l_b | ``standard``, the network's head | two classifiers on one feature |
| a(t) = log(pi_l^t + 1e-12) | ``adjustment`` | logit adjustment of strength t |
| tau | ``strength`` | strength for the balanced head, and the most for the standard one |
| H(y, l), H(y, l_b + a(tau)) | ``sup``, ``sup_balanced`` | supervised terms |
| y1 = argmax l - a(tau1), y2 = argmax l - a(tau) | ``targets`` | pseudo-labels on the weak view |
| mean m1 H(y1, l_s), mean m2 H(y2, l_b,s) | ``unsup``, ``unsup_balanced`` | consistency terms on the strong view |
| u | ``pool_prior`` | running histogram of confident predictions of the balanced head |
| tau1 = tau softmax(D)_1 | ``standard_strength`` | D: symmetric KL of u to the three ``anchors``, mean of a period |

m1 and m2 mark images on which either of two views of the same evidence reaches the threshold: l and l - a(tau1) for
the standard head, l_b and l - a(tau) for the balanced one.

Deviations. The released port of the comparison drops the estimation (tau1 stays tau), which ``estimate = false`` gives
back; with as many labels for every class both are the same. One strong view, as in the port; the official code has two.
The balanced head is the network's, since it is the one that predicts, and both heads start as the protocol's
classifiers do. The histogram counts every image, where the official code adds at most one per class and step. D is
averaged over the steps that had a confident prediction, and tau1 stays as it is until there was one. A period is an
epoch of the official code. The reversed anchor gives the rarest labelled class the largest share whatever the order of
classes; the official code reverses the order, which is the same where classes are sorted by size. Shares below 1e-12
count as 1e-12.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from unissl.methods.base import Context, Method, MethodConfig, Network, forward_concat, xavier_linear
from unissl.ops.losses import cross_entropy, one_hot
from unissl.types import Batch, DataInfo, Losses, Step

TINY = 1e-12
"""Keeps logarithms of empty classes finite."""


class ACRConfig(MethodConfig):
    name: Literal["acr"] = "acr"
    threshold: float = Field(default=0.95, ge=0, le=1)
    """Confidence from which a pseudo-label is used."""
    unsup_weight: float = Field(default=1.0, ge=0)
    """Weight of both unlabelled terms."""
    strength: float = Field(default=2.0, ge=0)
    """tau, power of the labelled prior in the logit adjustment."""
    estimate: bool = True
    """Fit the adjustment of the standard head's pseudo-labels to the pool; off is the released port."""
    estimate_from: float = Field(default=6 / 500, ge=0, le=1)
    """Share of the budget after which the pool's class distribution is estimated."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of the running class distribution of the pool."""


class ACR(Method):
    Config = ACRConfig
    title, venue, family = "ACR", "CVPR 2023", "long-tailed"
    idea = "a balanced head, and logit adjustment by the estimated class distribution"
    link = "https://doi.org/10.1109/CVPR52729.2023.00338"

    def __init__(self, cfg: ACRConfig, info: DataInfo) -> None:
        super().__init__(cfg, info)
        self.standard = xavier_linear(info.feat_dim, info.num_classes)
        prior = info.log_prior().exp()
        uniform = torch.full_like(prior, 1 / info.num_classes)
        self.anchors = nn.Buffer(torch.stack([prior, uniform, reversed_prior(prior)]))  # (3, C)
        self.pool_prior = nn.Buffer(uniform.clone())
        self.standard_strength = nn.Buffer(torch.tensor(float(cfg.strength)))
        self.distance = nn.Buffer(torch.zeros(3))  # summed over the period, one per anchor
        self.watched = nn.Buffer(torch.tensor(0.0))  # steps of the period that are in the sum

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        lb, ulb = batch["labelled"], batch["unlabelled"]
        lb_w, ulb_w, ulb_s = forward_concat(net, lb.views["weak"], ulb.views["weak"], ulb.views["strong"])
        (pseudo, keep), (pseudo_b, keep_b) = self.targets(ulb_w.feat.detach(), ulb_w.logits.detach())
        if self.cfg.estimate and step.fraction >= self.cfg.estimate_from:
            self.watch(ulb_w.logits.detach().softmax(-1))

        adjusted = lb_w.logits + self.adjustment(self.cfg.strength)
        terms = {
            "sup": cross_entropy(self.standard(lb_w.feat), lb.targets).mean(),
            "sup_balanced": cross_entropy(adjusted, lb.targets).mean(),
            "unsup": (keep * cross_entropy(self.standard(ulb_s.feat), pseudo)).mean(),
            "unsup_balanced": (keep_b * cross_entropy(ulb_s.logits, pseudo_b)).mean(),
        }
        weights = dict.fromkeys(("unsup", "unsup_balanced"), self.cfg.unsup_weight)
        logs = {"selected": keep_b.mean(), "selected_standard": keep.mean(), "strength": self.standard_strength.clone()}
        return Losses(terms, weights, logs)

    def adjustment(self, strength: float | Tensor) -> Tensor:
        """a(t) = log(pi_l^t + 1e-12), (C,)."""
        return torch.log(self.anchors[0] ** strength + TINY)

    @torch.no_grad()
    def targets(self, feat: Tensor, balanced: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Pseudo-labels (U,) and masks (U,) for the standard and for the balanced head, from the weak view."""
        logits = self.standard(feat)
        adapted = logits - self.adjustment(self.standard_strength)
        adjusted = logits - self.adjustment(self.cfg.strength)
        either = self.confident(adapted) | self.confident(logits)
        either_b = self.confident(balanced) | self.confident(adjusted)
        return (adapted.argmax(-1), either.to(feat.dtype)), (adjusted.argmax(-1), either_b.to(feat.dtype))

    def confident(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1).amax(-1).ge(self.cfg.threshold)

    @torch.no_grad()
    def watch(self, probs: Tensor) -> None:
        """Update u with confident predictions (U, C) of the balanced head, and the sum of its distances to the
        anchors."""
        confidence, pred = probs.max(-1)
        confident = (confidence >= self.cfg.threshold).to(probs.dtype)
        counts = confident @ one_hot(pred, self.info.num_classes, probs.dtype)
        confident_step = (counts.sum() > 0).to(probs.dtype)
        self.pool_prior.lerp_(counts / counts.sum().clamp(min=1), confident_step * (1 - self.cfg.momentum))
        u, anchors = self.pool_prior.clamp(min=TINY), self.anchors.clamp(min=TINY)
        symmetric_kl = 0.5 * ((u - anchors) * (u.log() - anchors.log())).sum(-1)
        self.distance.add_(confident_step * symmetric_kl)
        self.watched.add_(confident_step)

    def on_period_start(self, ctx: Context) -> None:
        """Set tau1 by the mean distances of the last period, and reset the sums."""
        if self.watched > 0:
            share = (self.distance / self.watched).softmax(0)[0]
            self.standard_strength.copy_(self.cfg.strength * share)
        self.distance.zero_()
        self.watched.zero_()


def reversed_prior(prior: Tensor) -> Tensor:
    """The same shares (C,), the largest for the class that had the smallest."""
    order = prior.argsort(descending=True, stable=True)
    result = torch.empty_like(prior)
    result[order] = prior[order.flip(0)]
    return result
