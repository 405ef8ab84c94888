"""CDMAD: the logits for an image without content are the network's bias towards classes, so subtract them.

A solid white image belongs to no class. Its logits are the network's bias towards classes, whatever labelled and
unlabelled images have caused it. CDMAD is FixMatch with these logits subtracted: from the weak view's before
pseudo-labels are computed, in the later part of training, and from every prediction.

Paper: Lee and Kim, "CDMAD: Class-Distribution-Mismatch-Aware Debiasing for Class-Imbalanced Semi-Supervised Learning",
CVPR 2024, https://arxiv.org/abs/2403.10391. Official code: https://github.com/LeeHyuck/CDMAD.

| symbol | name here | equation |
|---|---|---|
| b = l(white) | ``bias`` | logits of an image of ones in normalised space |
| q = softmax(l_w - b) | ``probs`` | pseudo-label on the weak view; without b before ``debias_from`` |
| mean H(y, l) | ``sup`` | supervised term |
| mean 1[max q >= c] H(argmax q, l_s) | ``unsup``, ``threshold`` | consistency term on the strong view |
| l(x) - b | ``predict`` | prediction |

Deviations. The white image passes in eval mode: it is normalised as test images are and leaves BatchNorm's running
statistics alone. In the released port of the comparison (and, with one image, in the official code) it passes in train
mode at every step, after the real images: the white batch is normalised by its own statistics, which are those of a
constant, and half of the updates of the running statistics come from it. ``port = true`` gives that. Hard labels and a
threshold of 0.95 are the port's; the official code has ``soft = true`` and ``threshold = 0``, and two strong views
where we have one.
"""

from __future__ import annotations

from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from unissl.methods.base import InferenceModel, Method, MethodConfig, Needs, Network, forward_concat
from unissl.ops.losses import cross_entropy
from unissl.types import Batch, Losses, Prediction, Step


class CDMADConfig(MethodConfig):
    name: Literal["cdmad"] = "cdmad"
    threshold: float = Field(default=0.95, ge=0, le=1)
    """Confidence from which a pseudo-label is used."""
    unsup_weight: float = Field(default=1.0, ge=0)
    """Weight of the unlabelled term."""
    debias_from: float = Field(default=51 / 256, ge=0, le=1)
    """Share of the budget after which pseudo-labels are debiased; predictions are from the start."""
    soft: bool = False
    """Learn from the whole distribution instead of its most probable class."""
    port: bool = False
    """As the released port: at every step a batch of white images passes in train mode and moves BatchNorm."""


class CDMAD(Method):
    Config = CDMADConfig
    title, venue, family = "CDMAD", "CVPR 2024", "long-tailed"
    idea = "subtracts the bias that the model has on a white image"
    link = "https://arxiv.org/abs/2403.10391"
    needs = frozenset({Needs.IMAGES})

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        lb, ulb = batch["labelled"], batch["unlabelled"]
        debias = step.fraction >= self.cfg.debias_from
        bias = self.bias(net, ulb.views["weak"]) if debias and not self.cfg.port else 0.0
        lb_w, ulb_w, ulb_s = forward_concat(net, lb.views["weak"], ulb.views["weak"], ulb.views["strong"])
        if self.cfg.port:  # after the real images, which decides what BatchNorm's running statistics end with
            white = self.bias(net, ulb.views["weak"])
            bias = white if debias else 0.0

        probs = (ulb_w.logits.detach() - bias).softmax(-1)
        confidence, pseudo = probs.max(-1)
        keep = (confidence >= self.cfg.threshold).to(probs.dtype)
        sup = cross_entropy(lb_w.logits, lb.targets).mean()
        unsup = (keep * cross_entropy(ulb_s.logits, probs if self.cfg.soft else pseudo)).mean()
        return Losses({"sup": sup, "unsup": unsup}, {"unsup": self.cfg.unsup_weight}, {"selected": keep.mean()})

    @torch.no_grad()
    def bias(self, net: Network, images: Tensor) -> Tensor:
        """Logits of white images in the shape of these, (1, C); the port's (n, C)."""
        if self.cfg.port:
            return net(torch.ones_like(images)).logits
        training = [module for module in cast(nn.Module, net).modules() if module.training]
        try:
            for module in training:
                module.training = False
            return white_logits(net, images)
        finally:
            for module in training:  # parts that were in eval mode before, such as frozen ones, stay there
                module.training = True

    def predict(self, net: Network, x: Tensor) -> Prediction:
        out = net(x)
        return Prediction(out.logits - white_logits(net, x), out.feat)

    def inference_module(self, net: nn.Module) -> nn.Module:
        return InferenceModel(net, self)  # the method has no weights, so that those of the network alone are shipped


def white_logits(net: Network, images: Tensor) -> Tensor:
    """Logits (1, C) of one image of ones."""
    return net(torch.ones_like(images[:1])).logits
