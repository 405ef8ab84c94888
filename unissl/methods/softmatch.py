"""SoftMatch: every pseudo-label counts, with a weight that falls off smoothly below the usual confidence.

Confidences are modelled as a Gaussian with a running mean and variance. A confidence above the mean
weighs 1, one below it falls off as that Gaussian does, so no pseudo-label is thrown away and poor ones hardly count.
Before that, predictions are aligned to the uniform distribution, so that classes which are predicted rarely are not
also weighted down (uniform alignment).

Paper: Chen, Tao, Fan, Wang, Wang, Schiele, Xie, Raj and Savvides, "SoftMatch: Addressing the Quantity-Quality Trade-off
in Semi-supervised Learning", ICLR 2023, https://arxiv.org/abs/2301.10921. Official code:
https://github.com/microsoft/Semi-supervised-learning.

| symbol | name here | equation |
|---|---|---|
| UA(p) | ``alignment``, ``ops.alignment.UniformAlignment`` | normalise(p u(C) / mean p) |
| mu_t, sigma_t^2 | ``weighting``, ``ops.stats.TruncatedGaussian`` | running mean and unbiased variance of max UA(p) |
| lambda(p), weight | ``weight`` | exp(-n_sigma^2 min(0, max UA(p) - mu_t)^2 / (2 sigma_t^2)) |
| L_s = mean H(y, p(x_w)) | ``sup`` | supervised loss |
| L_u = mean lambda(p) H(argmax p, p(x_s)) | ``unsup`` | unlabelled loss |
| m | ``momentum`` | of all running values |

Deviations: the width of the kernel is sigma / 2, as in the official code (``n_sigma``); the paper's formula has sigma.
As there, alignment changes the weights only: pseudo-labels come from the unaligned predictions. Running values are
updated before they are used, and the running mean prediction starts at the first batch's.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from unissl.methods.base import Method, MethodConfig, Network, forward_concat
from unissl.ops.alignment import UniformAlignment
from unissl.ops.losses import cross_entropy
from unissl.ops.stats import TruncatedGaussian
from unissl.types import Batch, DataInfo, Losses, Step


class SoftMatchConfig(MethodConfig):
    name: Literal["softmatch"] = "softmatch"
    short_run: ClassVar[dict[str, Any]] = {"momentum": 0.99}
    align: bool = True
    """Align predictions to the uniform distribution before they are weighted."""
    n_sigma: float = Field(default=2.0, gt=0)
    """Sharpness of the weights: the width of their fall-off is sigma / n_sigma."""
    momentum: float = Field(default=0.999, ge=0, lt=1)
    """Momentum of the running mean prediction and of the running mean and variance of the confidence."""
    unsup_weight: float = Field(default=1.0, ge=0)
    """Weight of the unlabelled term."""


class SoftMatch(Method):
    Config = SoftMatchConfig
    title, venue, family = "SoftMatch", "ICLR 2023", "closed-set"
    idea = "a Gaussian weight on confidence instead of a threshold"
    link = "https://arxiv.org/abs/2301.10921"

    def __init__(self, cfg: SoftMatchConfig, info: DataInfo) -> None:
        super().__init__(cfg, info)
        self.alignment = UniformAlignment(info.num_classes, cfg.momentum) if cfg.align else None
        self.weighting = TruncatedGaussian(1 / info.num_classes, 1.0, cfg.momentum, cfg.n_sigma)

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        lb, ulb = batch["labelled"], batch["unlabelled"]
        lb_w, ulb_w, ulb_s = forward_concat(net, lb.views["weak"], ulb.views["weak"], ulb.views["strong"])

        probs = ulb_w.logits.detach().softmax(-1)
        aligned = self.alignment(probs) if self.alignment is not None else probs
        weight = self.weighting(aligned.amax(-1))
        sup = cross_entropy(lb_w.logits, lb.targets).mean()
        unsup = (weight * cross_entropy(ulb_s.logits, probs.argmax(-1))).mean()
        return Losses({"sup": sup, "unsup": unsup}, {"unsup": self.cfg.unsup_weight}, {"selected": weight.mean()})
