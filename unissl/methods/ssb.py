"""SSB: a classifier that takes every confident pseudo-label, and a detector of outliers that does not disturb it.

Pseudo-labels help the classifier even if the image is an outlier, so nothing is filtered: the classifier is
FixMatch's. The detector has one binary output per class (one-vs-all). Both read the same feature through separate
multi-layer heads, so that one task does not disturb the other. The detector learns from
labels, from entropy and consistency on the pool, and from pseudo-negatives: classes that the weak view rules out are
ruled out on the strong view too. It is trained in the last part of the budget only; before that its weights, and with
them the outlier scores, are those of the random start.

Paper: Fan, Kukleva, Dai and Schiele, "SSB: Simple but Strong Baseline for Boosting Performance of Open-Set
Semi-Supervised Learning", ICCV 2023, https://arxiv.org/abs/2311.10572. Official code: https://github.com/YUE-FAN/SSB
(read for facts only).

| symbol | name here | where |
|---|---|---|
| two heads, D-1024-1024-out | ``Heads``, ``hidden`` | C outputs, and 2C for the detector |
| p_in(c), p_out(c) | ``ops.open_set`` | softmax over the pair of class c |
| L_x | term ``sup`` | stage 1: weak views; stage 2: weak and flipped ones |
| L_fix, tau | term ``unsup``, ``threshold``, ``unsup_weight`` | a separate batch, nothing filtered |
| L_ova | term ``ova``, ``ova_weight`` | ``one_vs_all`` |
| L_oem | term ``entropy``, ``entropy_weight`` | ``ops.open_set.ova_entropy``, mean of both views |
| L_socr | term ``consistency``, ``consistency_weight`` | ``ops.open_set.ova_consistency`` |
| L_neg | term ``negatives``, ``negative_threshold``, ``negative_weight`` | ``SSB.negatives`` |
| p_out(predicted class) | ``Prediction.outlier`` | ``Heads.predict``; above 0.5 the paper calls it an outlier |

Deviations. The pool's second strong view, which the official code sends through the network but uses in no loss, is
left out; it only moved BatchNorm. On feature vectors the flipped view is one with dropped entries (``augment``). The
entropy is computed from log-probabilities without the constant 1e-8. The two stages are one run (the official code
resumes a FixMatch checkpoint), and ``warm_up`` is a share of the budget. Stage 2 has at least one step. The pool's
batches are those of the common protocol, seven times the labelled one, not twice. The official code keeps the
checkpoint with the best accuracy on validation labels; here the last one counts. Of its variants (FixMatch, FlexMatch,
SimMatch) this is the first. Equation numbers are left out: these facts are the code's.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from unissl.methods.base import HeadsMethod, MethodConfig, Network, forward_concat, xavier_linear
from unissl.ops.losses import cross_entropy
from unissl.ops.open_set import inlier_probabilities, ova_consistency, ova_entropy, ova_log_probabilities
from unissl.types import Batch, DataInfo, Losses, Prediction, Step, Stream

DETECTOR_TERMS = ("ova", "entropy", "consistency", "negatives")
"""Losses of stage 2, which are 0 in stage 1."""


class SSBConfig(MethodConfig):
    name: Literal["ssb"] = "ssb"
    short_run: ClassVar[dict[str, Any]] = {"warm_up": 0.5}
    """The detector, which the paper trains in the last 7 % of half a million steps, gets the second half."""
    paper_run: ClassVar[dict[str, Any]] = {"batch": {"unlabelled": 128}}
    threshold: float = Field(default=0.95, ge=0, le=1)
    """Confidence from which a pseudo-label is used."""
    unsup_weight: float = Field(default=1.0, ge=0)
    """Weight of the pseudo-labels' term."""
    warm_up: float = Field(default=475 / 512, ge=0, lt=1)
    """Share of the budget of stage 1, which is FixMatch; the detector is trained after it."""
    ova_weight: float = Field(default=1.0, ge=0)
    """Weight of the detector's labelled term."""
    entropy_weight: float = Field(default=0.1, ge=0)
    """Weight of the entropy of the detector's outputs on the pool."""
    consistency_weight: float = Field(default=0.5, ge=0)
    """Weight of the detector's consistency between two views of the pool; published with 1 for CIFAR-100."""
    negative_weight: float = Field(default=1.0, ge=0)
    """Weight of the pseudo-negatives."""
    negative_threshold: float = Field(default=0.01, ge=0, le=1)
    """Inlier probability up to which a class is a pseudo-negative of an image."""
    hidden: int = Field(default=1024, ge=1)
    """Width of the two hidden layers of each head; published with 4096 for ImageNet."""


class Heads(nn.Module):
    """Classifier (n, C) and one-vs-all detector (n, 2C) on the feature: what prediction needs besides the network."""

    def __init__(self, feat_dim: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.classifier = three_layers(feat_dim, hidden, num_classes)
        self.detector = three_layers(feat_dim, hidden, 2 * num_classes)

    def predict(self, net: Network, x: Tensor) -> Prediction:
        feat = net(x).feat
        logits: Tensor = self.classifier(feat)
        log_out, _ = ova_log_probabilities(self.detector(feat))
        outlier = log_out.gather(1, logits.argmax(1, keepdim=True)).squeeze(1).exp()
        return Prediction(logits, feat, outlier)


class SSB(HeadsMethod):
    Config = SSBConfig
    title, venue, family = "SSB", "ICCV 2023", "open-set"
    idea = "open set: FixMatch with an outlier detector"
    link = "https://arxiv.org/abs/2311.10572"

    def __init__(self, cfg: SSBConfig, info: DataInfo) -> None:
        super().__init__(cfg, info)
        self.heads = Heads(info.feat_dim, cfg.hidden, info.num_classes)

    @classmethod
    def streams(cls, cfg: Any) -> dict[str, Stream]:
        return {
            "labelled": Stream("labelled", ("weak", "flip", "strong", "strong2")),
            "unlabelled": Stream("unlabelled", ("weak", "strong")),  # for the classifier
            "pool": Stream("unlabelled", ("weak", "flip", "strong")),  # for the detector, drawn independently
        }

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        lb, ulb, classifier = batch["labelled"], batch["unlabelled"], self.heads.classifier
        views = [ulb.views["weak"], ulb.views["strong"]]
        if step.iteration < math.floor(self.cfg.warm_up * step.total):  # rounded down, so that stage 2 has a step
            lb_w, ulb_w, ulb_s = (out.feat for out in forward_concat(net, lb.views["weak"], *views))
            mined = lb.targets.new_zeros(())
            terms = {"sup": cross_entropy(classifier(lb_w), lb.targets).mean(), **dict.fromkeys(DETECTOR_TERMS, mined)}
        else:
            terms, mined = self.labels_and_detector(net, batch)
            ulb_w, ulb_s = (out.feat for out in forward_concat(net, *views))  # BatchNorm sees this batch by itself

        confidence, pseudo = classifier(ulb_w).detach().softmax(-1).max(-1)
        keep = (confidence >= self.cfg.threshold).to(confidence.dtype)
        terms["unsup"] = (keep * cross_entropy(classifier(ulb_s), pseudo)).mean()  # known or not: there is no filter
        weights = {
            "unsup": self.cfg.unsup_weight,
            "ova": self.cfg.ova_weight,
            "entropy": self.cfg.entropy_weight,
            "consistency": self.cfg.consistency_weight,
            "negatives": self.cfg.negative_weight,
        }
        return Losses(terms, weights, {"selected": keep.mean(), "mined": mined})

    def labels_and_detector(self, net: Network, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Stage 2: the terms of the labelled batch and of the detector's, and the share of pseudo-negatives."""
        lb, pool, detector = batch["labelled"], batch["pool"], self.heads.detector
        views = [lb.views[name] for name in ("weak", "flip", "strong", "strong2")]
        views += [pool.views[name] for name in ("weak", "flip", "strong")]
        feats = [out.feat for out in forward_concat(net, *views)]
        lb_w, lb_s, targets = torch.cat(feats[:2]), torch.cat(feats[2:4]), lb.targets.repeat(2, 1)
        pool_w, pool_f, pool_s = (detector(feat) for feat in feats[4:])
        negatives, mined = self.negatives(pool_w, pool_s)
        terms: dict[str, Tensor] = {
            "sup": cross_entropy(self.heads.classifier(lb_w), targets).mean(),
            "ova": one_vs_all(detector(lb_w), detector(lb_s), targets),
            "entropy": (ova_entropy(pool_w) + ova_entropy(pool_f)) / 2,
            "consistency": ova_consistency(pool_w, pool_f),
            "negatives": negatives,
        }
        return terms, mined

    def negatives(self, weak: Tensor, strong: Tensor) -> tuple[Tensor, Tensor]:
        """-log p_out on the strong view for the classes that the weak view rules out, summed over them; their share."""
        out = inlier_probabilities(weak.detach()) <= self.cfg.negative_threshold  # (U, C)
        log_out, _ = ova_log_probabilities(strong)
        return -(out * log_out).sum(1).mean(), out.to(log_out.dtype).mean()


def three_layers(width_in: int, hidden: int, width_out: int) -> nn.Sequential:
    first, second = xavier_linear(width_in, hidden), xavier_linear(hidden, hidden)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), xavier_linear(hidden, width_out))


def one_vs_all(weak: Tensor, strong: Tensor, targets: Tensor) -> Tensor:
    """L_ova of labelled views, (n, 2C) logits each: the true class is in (weak views), all others are out (all views).

    The negatives are averaged over all C classes, the true one included with 0.
    """
    _, log_in = ova_log_probabilities(weak)
    log_out, _ = ova_log_probabilities(torch.cat([weak, strong]))
    return -(targets * log_in).sum(1).mean() - ((1 - targets.repeat(2, 1)) * log_out).mean()
