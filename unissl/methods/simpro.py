"""SimPro: estimate the pool's class distribution from confident pseudo-labels, and model it apart from p(x | y).

The network's logits model p(x | y) alone. Adding the log of a class distribution makes them a Bayes classifier for it:
pseudo-labels use the estimated distribution of the pool, training that of all images in the losses, and prediction
none, so that it favours no class. The distributions are estimated once per period from its labels and confident
pseudo-labels, which makes the whole an expectation-maximisation: nothing is assumed about the pool.

Paper: Du, Han and Huang, "SimPro: A Simple Probabilistic Framework Towards Realistic Long-Tailed Semi-Supervised
Learning", ICML 2024, https://arxiv.org/abs/2402.13505. Official code: https://github.com/LeapLabTHU/SimPro.

| symbol | name here | equation |
|---|---|---|
| est, u = log(est^tau + 1e-12) | ``pool_prior``, ``pool_adjustment`` | class distribution of the pool |
| adapt, a = log(adapt^tau + 1e-12) | ``seen_prior``, ``seen_adjustment`` | that of all images in the losses |
| q = softmax(l_w + u) | ``soft`` | soft pseudo-label on the weak view |
| H(y, l + a) / rho | ``sup``, ``rho`` | supervised term |
| mean 1[max q >= c] H(q, l_s + a) | ``unsup``, ``threshold`` | consistency term on the strong view |
| n_l, n_u | ``labelled_seen``, ``pool_seen`` | labels, and confident q, summed over the period |
| est <- m est + (1-m) n_u / (sum n_u + 1) | ``estimate`` | and adapt with (n_l + n_u) / sum |

Deviations. rho is the official code's ratio of batch counts, (M / B_u) / (N / B_l), but not rounded to whole batches,
which would divide by none where N < B_l. It is near 1 in the official settings and grows as labels become few: 44 with
the comparison's batches at N = 40, while the released port takes M / N, about 310. What it divides is all that the true
labels contribute, so a short run with few labels learns slowly; ``rho`` overrides it. The port also moves both
distributions at every step instead of once per period, though the adjustments still change only when a period starts.
``port = true`` gives the port's rho and updates. One strong view and no labelled strong view, as in the port; the
official code has two and one, and tau = 2 on CIFAR-10 and STL-10. A period (``train.method_periods``) is an epoch of
the official code.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from unissl.methods.base import Context, Method, MethodConfig, Network, forward_concat
from unissl.ops.losses import cross_entropy
from unissl.types import Batch, DataInfo, Losses, Step

TINY = 1e-12
"""Keeps logarithms of empty classes finite."""


class SimProConfig(MethodConfig):
    name: Literal["simpro"] = "simpro"
    threshold: float = Field(default=0.95, ge=0, le=1)
    """Confidence from which a pseudo-label is used."""
    tau: float = Field(default=1.0, ge=0)
    """Power of the class distributions in the logit adjustments."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of both class distributions."""
    rho: float | None = Field(default=None, gt=0)
    """Divides the supervised term; by default pool batches over labelled batches in one pass."""
    port: bool = False
    """As the released port: rho is M / N unless given, and the class distributions move at every step."""


class SimPro(Method):
    Config = SimProConfig
    title, venue, family = "SimPro", "ICML 2024", "long-tailed"
    idea = "estimates the class distribution of the unlabelled images by expectation maximisation"
    link = "https://arxiv.org/abs/2402.13505"

    def __init__(self, cfg: SimProConfig, info: DataInfo) -> None:
        super().__init__(cfg, info)
        self.pool_prior = nn.Buffer(torch.full((info.num_classes,), 1 / info.num_classes))
        self.seen_prior = nn.Buffer(info.log_prior().exp())
        self.pool_adjustment = nn.Buffer(self.adjustment(self.pool_prior))
        self.seen_adjustment = nn.Buffer(self.adjustment(self.seen_prior))
        self.labelled_seen = nn.Buffer(torch.zeros(info.num_classes))
        self.pool_seen = nn.Buffer(torch.zeros(info.num_classes))

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        lb, ulb = batch["labelled"], batch["unlabelled"]
        lb_w, ulb_w, ulb_s = forward_concat(net, lb.views["weak"], ulb.views["weak"], ulb.views["strong"])

        soft = (ulb_w.logits.detach() + self.pool_adjustment).softmax(-1)
        keep = (soft.amax(-1) >= self.cfg.threshold).to(soft.dtype)
        sup = cross_entropy(lb_w.logits + self.seen_adjustment, lb.targets).mean()
        unsup = (keep * cross_entropy(ulb_s.logits + self.seen_adjustment, soft)).mean()

        self.labelled_seen.add_(lb.targets.sum(0))
        self.pool_seen.add_((keep[:, None] * soft).sum(0))
        if self.cfg.port:
            self.estimate()
        weight = 1 / self.rho(len(lb), len(ulb))
        return Losses({"sup": sup, "unsup": unsup}, {"sup": weight}, {"selected": keep.mean()})

    def rho(self, labelled: int, unlabelled: int) -> float:
        """The divisor of the supervised term, for a step of so many images."""
        if self.cfg.rho is not None:
            return float(self.cfg.rho)
        ratio = self.info.num_unlabelled / sum(self.info.labelled_counts)
        return ratio if self.cfg.port else ratio * labelled / unlabelled

    def adjustment(self, prior: Tensor) -> Tensor:
        """log(p^tau + 1e-12), (C,)."""
        return torch.log(prior**self.cfg.tau + TINY)

    def estimate(self) -> None:
        """Move both class distributions towards those of the period so far."""
        total = self.labelled_seen + self.pool_seen
        self.pool_prior.lerp_(self.pool_seen / (self.pool_seen.sum() + 1), 1 - self.cfg.momentum)
        self.seen_prior.lerp_(total / total.sum(), 1 - self.cfg.momentum)

    def on_period_start(self, ctx: Context) -> None:
        """Update the class distributions with the finished period, use them from now on, and reset the counts."""
        if self.labelled_seen.any() and not self.cfg.port:
            self.estimate()
        self.pool_adjustment.copy_(self.adjustment(self.pool_prior))
        self.seen_adjustment.copy_(self.adjustment(self.seen_prior))
        self.labelled_seen.zero_()
        self.pool_seen.zero_()
