"""FixMatch: a confident prediction on the weak view is the target of the strong view.

Paper: Sohn et al., "FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence", NeurIPS 2020,
https://arxiv.org/abs/2001.07685. Official code: https://github.com/google-research/fixmatch.

| symbol | name here | equation |
|---|---|---|
| l_s = mean H(y, p(x_w)) | ``sup`` | Eq. (3) |
| l_u = mean 1[max q >= tau] H(argmax q, p(x_s)) | ``unsup`` | Eq. (4) |
| tau, lambda_u | ``threshold``, ``unsup_weight`` | |

Deviations: none from the paper; as in the protocol of the comparison there is no distribution alignment and the
three groups of views share one forward pass.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from unissl.methods.base import Method, MethodConfig, Network, forward_concat
from unissl.ops.losses import cross_entropy
from unissl.types import Batch, Losses, Step


class FixMatchConfig(MethodConfig):
    name: Literal["fixmatch"] = "fixmatch"
    threshold: float = Field(default=0.95, ge=0, le=1)
    """Confidence from which a pseudo-label is used."""
    unsup_weight: float = Field(default=1.0, ge=0)
    """Weight of the unlabelled term."""


class FixMatch(Method):
    Config = FixMatchConfig
    title, venue, family = "FixMatch", "NeurIPS 2020", "closed-set"
    idea = "confident pseudo-labels of a weak view are targets of the strong view"
    link = "https://arxiv.org/abs/2001.07685"

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        lb, ulb = batch["labelled"], batch["unlabelled"]
        lb_w, ulb_w, ulb_s = forward_concat(net, lb.views["weak"], ulb.views["weak"], ulb.views["strong"])

        confidence, pseudo = ulb_w.logits.detach().softmax(-1).max(-1)
        keep = (confidence >= self.cfg.threshold).to(confidence.dtype)
        sup = cross_entropy(lb_w.logits, lb.targets).mean()  # Eq. (3)
        unsup = (keep * cross_entropy(ulb_s.logits, pseudo)).mean()  # Eq. (4)
        return Losses({"sup": sup, "unsup": unsup}, {"unsup": self.cfg.unsup_weight}, {"selected": keep.mean()})
