"""FlexMatch: classes that are learnt badly so far get a lower confidence threshold than those learnt well.

How well a class is learnt is read off the pool: each unlabelled image keeps the last class that was predicted for it
with high confidence, and a class to which many images belong counts as learnt. Each class has FixMatch's threshold
scaled by its share of the largest count. While most of the pool is without a class, the images without one are the
largest count, so all thresholds begin at zero and rise together (warm-up).

Paper: Zhang, Wang, Hou, Wu, Wang, Okumura and Shinozaki, "FlexMatch: Boosting Semi-Supervised Learning with Curriculum
Pseudo Labeling", NeurIPS 2021, https://arxiv.org/abs/2110.08263. Official code: https://github.com/TorchSSL/TorchSSL.

| symbol | name here | equation |
|---|---|---|
| u_n, last confident class of image n, or -1 | ``stored`` | u_n = argmax q_n where max q_n >= tau |
| sigma(c), learning effect | ``counts`` | number of n with u_n = c |
| beta(c), its share of the largest | ``status`` | sigma(c) / max(max_c' sigma(c'), images without a class) |
| T(c) = M(beta(c)) tau | ``thresholds`` | M(x) = x / (2 - x) |
| L_s = mean H(y, p(x_w)) | ``sup`` | supervised loss |
| L_u = mean 1[max q >= T(argmax q)] H(argmax q, p(x_s)) | ``unsup`` | unlabelled loss |
| tau, lambda | ``threshold``, ``unsup_weight`` | |

Deviations: a confidence at a threshold passes, as in the official code (the paper has a strict inequality). As there, a
step uses the counts from before it. The official code leaves beta as it was while the whole pool is stored under one
class; here beta always follows from the stored classes, which are the only state. If a pool smaller than a batch shows
an image twice in a step, its last confident class is stored.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from unissl.methods.base import Method, MethodConfig, Network, forward_concat
from unissl.ops.losses import cross_entropy
from unissl.types import UNLABELLED, Batch, DataInfo, Losses, Step


class FlexMatchConfig(MethodConfig):
    name: Literal["flexmatch"] = "flexmatch"
    threshold: float = Field(default=0.95, ge=0, le=1)
    """Confidence from which a class is stored, and highest threshold of a pseudo-label."""
    warm_up: bool = True
    """Images without a class count as a rival class, which keeps all thresholds low at first."""
    unsup_weight: float = Field(default=1.0, ge=0)
    """Weight of the unlabelled term."""


class FlexMatch(Method):
    Config = FlexMatchConfig
    title, venue, family = "FlexMatch", "NeurIPS 2021", "closed-set"
    idea = "FixMatch with a lower threshold for classes that are learnt slowly"
    link = "https://arxiv.org/abs/2110.08263"

    def __init__(self, cfg: FlexMatchConfig, info: DataInfo) -> None:
        super().__init__(cfg, info)
        self.stored = nn.Buffer(torch.full((info.num_unlabelled,), UNLABELLED))

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        lb, ulb = batch["labelled"], batch["unlabelled"]
        lb_w, ulb_w, ulb_s = forward_concat(net, lb.views["weak"], ulb.views["weak"], ulb.views["strong"])

        confidence, pseudo = ulb_w.logits.detach().softmax(-1).max(-1)
        keep = (confidence >= self.thresholds()[pseudo]).to(confidence.dtype)
        self.store(ulb.index, pseudo, confidence >= self.cfg.threshold)
        sup = cross_entropy(lb_w.logits, lb.targets).mean()
        unsup = (keep * cross_entropy(ulb_s.logits, pseudo)).mean()
        return Losses({"sup": sup, "unsup": unsup}, {"unsup": self.cfg.unsup_weight}, {"selected": keep.mean()})

    def thresholds(self) -> Tensor:
        """T (C,) from the stored classes."""
        counts = torch.zeros(self.info.num_classes + 1, device=self.stored.device)  # first: without a class
        counts.index_add_(0, self.stored - UNLABELLED, torch.ones_like(self.stored, dtype=counts.dtype))
        rivals = counts if self.cfg.warm_up else counts[1:]
        status = counts[1:] / rivals.max().clamp(min=1)
        thresholds: Tensor = self.cfg.threshold * status / (2 - status)
        return thresholds

    def store(self, index: Tensor, pseudo: Tensor, confident: Tensor) -> None:
        """Keep the class of each confident image; of an image that is there twice, the last one."""
        order = torch.arange(len(index), device=index.device).where(confident, -1)
        last = torch.full_like(self.stored, -1).scatter_reduce(0, index, order, "amax")
        self.stored.copy_(pseudo[last].where(last >= 0, self.stored))
