"""CaliMatch: calibrate the classifier and the outlier detector, so that fixed cut-offs on their confidences are
meaningful.

A classifier predicts the class and a one-vs-all detector, for each class, whether an image belongs to it. Both tend to
be overconfident, so that wrong pseudo-labels and outliers pass fixed cut-offs. Each therefore has a
learnt temperature, trained on labelled images against targets that are smoothed as much as the held-out accuracy at
the same confidence asks for. An unlabelled image is used if the scaled classifier is confident and the scaled detector,
averaged over the classifier's distribution, predicts an inlier.

Paper: Bae, Kim and Do, "CaliMatch: Adaptive Calibration for Improving Safe Semi-supervised Learning", ICCV 2025,
https://arxiv.org/abs/2508.00922. Official code: https://github.com/bogus215/SafeSSL-Calibration (read for facts only).

| symbol | name here | where |
|---|---|---|
| l, o | ``HeadOutputs.logits``, ``HeadOutputs.ova`` | bias-free heads on the feature of length one, ``Heads`` |
| T_c, T_o | ``Heads.temperatures`` | learnt, one for each head |
| l / T_c, o / T_o | ``HeadOutputs.scaled``, ``HeadOutputs.scaled_ova`` | for calibration, selection and prediction |
| sum_c p_c p_in(c) | ``HeadOutputs.inlier`` | inlier score, of the scaled heads |
| L_sup | term ``sup`` | cross entropy of l |
| L_ova | term ``ova``, ``ova_weight`` | true class, and the hardest of the others, ``ova_loss`` |
| L_socr | term ``socr``, ``socr_weight`` | two weak views agree, ``ops.open_set.ova_consistency`` |
| accuracy per bin | ``class_profile``, ``ova_profile`` | held-out images by scaled confidence, ``bin_accuracies`` |
| L_cal | term ``cal``, ``cal_weight`` | l / T_c against smoothed targets, ``smoothed_confidence`` |
| L_ova,cal | term ``ova_cal``, ``ova_cal_weight`` | o / T_o likewise |
| L_fix, tau, pi | term ``fix``, ``fix_weight``, ``threshold``, ``inlier_threshold`` | mean over the images in use |

Deviations. Held-out labels: the official experiments hold out 500 per class of CIFAR-10. If one label of four is held
out, ten classes give ten images for thirty bins, of which twenty at least are empty; an empty bin leaves a sample its
own confidence as target, as in the official code. Both terms are then smoothed losses of the labelled images that
calibrate nothing: the classifier's temperature tends to 1 while those are classified rightly and upwards while they are
not. More held-out labels change less than one may expect, since a bin's accuracy is clamped into the bin itself: no
target ever differs from the sample's own confidence by more than 1/``bins``, but for the floors of 1/C and, in the
detector, 1/2. The profile is computed at the start of each period (``train.method_periods``) once the warm-up is over;
calibration before the first one finds only empty bins. The official code counts epochs from 1, so that what starts at
epoch 5 of 100 starts after four of them; here it is after five. Bins have their exact borders, where the official
look-up rounds them to two digits, and logarithms are exact, where it adds 1e-5 or 1e-8. The pool's batch is that of the
common protocol, not as large as the labelled one (50 each). Adam at 3e-3 without weight decay, times 0.2 after 80 % of
the budget, and prediction without EMA are ``own_optim``, which every recipe uses. Prediction returns the scaled logits,
whose softmax is the calibrated one; the class is the same. A temperature outside its range gets no gradient, as
published, so that one that has stepped out acts as the border from then on. Equation numbers are left out: these facts
are the code's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveFloat, model_validator
from torch import Tensor, nn

from unissl.methods.base import Context, HeadsMethod, MethodConfig, Needs, Network, forward_concat
from unissl.ops.losses import cross_entropy
from unissl.ops.open_set import inlier_probabilities, ova_consistency, ova_log_probabilities
from unissl.types import Batch, DataInfo, Losses, Prediction, Step, Stream

UNLABELLED_VIEWS = ("weak", "weak2", "strong")
EMPTY = -1.0
"""Stands for the accuracy of a bin without held-out images."""


class CaliMatchConfig(MethodConfig):
    name: Literal["calimatch"] = "calimatch"
    paper_run: ClassVar[dict[str, Any]] = {"batch": {"labelled": 50, "unlabelled": 50}}
    own_optim: ClassVar[dict[str, Any]] = {
        "name": "adam",
        "lr": 3e-3,
        "weight_decay": 0.0,
        "schedule": "step",
        "ema_decay": 0.0,
    }
    threshold: float = Field(default=0.95, ge=0, le=1)
    """tau, scaled confidence from which a pseudo-label is used."""
    inlier_threshold: float = Field(default=0.5, ge=0, le=1)
    """pi, inlier score from which an image is used; it must exceed 1/2 as well."""
    cal_weight: float = Field(default=1.0, ge=0)
    """Weight of the classifier's calibration."""
    ova_weight: float = Field(default=0.1, ge=0)
    """Weight of the detector's loss; published are 0.1 for CIFAR-10 and CIFAR-100, and 0.5 for SVHN."""
    socr_weight: float = Field(default=0.5, ge=0)
    """Weight of the detector's consistency between two weak views."""
    ova_cal_weight: float = Field(default=0.1, ge=0)
    """Weight of the detector's calibration; published are 0.1 for CIFAR-10, 0.0005 for CIFAR-100 and 0.5 for SVHN."""
    fix_weight: float = Field(default=1.0, ge=0)
    """Weight of the pseudo-label loss."""
    warm_up: float = Field(default=5 / 100, ge=0, le=1)
    """Share of the budget before calibration and pseudo-labels begin."""
    bins: int = Field(default=30, ge=1)
    """Bins of equal width into which confidences are sorted."""
    temperature: float = Field(default=1.5, gt=0)
    """Both temperatures at the start."""
    temperature_range: tuple[PositiveFloat, PositiveFloat] = (0.2, 5.0)
    """Lowest and highest temperature that takes effect."""
    normalise: bool = True
    """Scale features to unit length before both heads."""

    @model_validator(mode="after")
    def _check_temperature(self) -> Self:
        if not self.temperature_range[0] < self.temperature < self.temperature_range[1]:
            raise ValueError("temperature must lie inside temperature_range, or it would never be trained")
        return self


@dataclass(frozen=True)
class HeadOutputs:
    """Logits of both heads, unscaled and scaled: (n, C) of the classes and (n, 2C) of the detector."""

    logits: Tensor
    ova: Tensor
    scaled: Tensor
    scaled_ova: Tensor

    def inlier(self) -> Tensor:
        """Inlier score (n,): the inlier probabilities averaged over the predicted class distribution."""
        return (self.scaled.softmax(-1) * inlier_probabilities(self.scaled_ova)).sum(-1)


class Heads(nn.Module):
    """Classifier, one-vs-all detector and a temperature for each: all that prediction needs besides the network."""

    def __init__(self, cfg: CaliMatchConfig, info: DataInfo) -> None:
        super().__init__()
        self.normalise, self.range = cfg.normalise, cfg.temperature_range
        self.classes = nn.Linear(info.feat_dim, info.num_classes, bias=False)
        self.detector = nn.Linear(info.feat_dim, 2 * info.num_classes, bias=False)
        nn.init.xavier_normal_(self.classes.weight)
        nn.init.xavier_normal_(self.detector.weight)
        self.temperatures = nn.Parameter(torch.full((2,), cfg.temperature))  # T_c, T_o

    def forward(self, feat: Tensor) -> HeadOutputs:
        unit = nn.functional.normalize(feat) if self.normalise else feat
        logits, ova = self.classes(unit), self.detector(unit)
        of_classes, of_ova = (self.temperatures.clamp(*self.range) + 1e-5).unbind()
        return HeadOutputs(logits, ova, logits / of_classes, ova / of_ova)

    def predict(self, net: Network, x: Tensor) -> Prediction:
        outputs: HeadOutputs = self(feat := net(x).feat)
        return Prediction(outputs.scaled, feat, 1 - outputs.inlier())


class CaliMatch(HeadsMethod):
    Config = CaliMatchConfig
    title, venue, family = "CaliMatch", "ICCV 2025", "open-set"
    idea = "open set: calibrated confidences select the images"
    link = "https://arxiv.org/abs/2508.00922"
    needs = frozenset({Needs.HELDOUT_LABELS})

    def __init__(self, cfg: CaliMatchConfig, info: DataInfo) -> None:
        super().__init__(cfg, info)
        self.heads = Heads(cfg, info)
        self.class_profile = nn.Buffer(torch.full((cfg.bins,), EMPTY))
        self.ova_profile = nn.Buffer(torch.full((cfg.bins,), EMPTY))

    @classmethod
    def streams(cls, cfg: Any) -> dict[str, Stream]:
        return {"labelled": Stream("labelled", ("weak",)), "unlabelled": Stream("unlabelled", UNLABELLED_VIEWS)}

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        cfg, lb, ulb = self.cfg, batch["labelled"], batch["unlabelled"]
        parts = forward_concat(net, lb.views["weak"], *(ulb.views[view] for view in UNLABELLED_VIEWS))
        lb_w, ulb_w, ulb_w2, ulb_s = (self.heads(part.feat) for part in parts)

        pseudo, keep = self.select(ulb_w)
        classes, inlier = self.calibration_targets(lb_w, lb.targets)
        terms = {
            "sup": cross_entropy(lb_w.logits, lb.targets).mean(),
            "cal": cross_entropy(lb_w.scaled, classes).mean(),
            "ova": ova_loss(lb_w.ova, lb.targets),
            "socr": ova_consistency(ulb_w.ova, ulb_w2.ova),
            "ova_cal": ova_loss(lb_w.scaled_ova, inlier),
            "fix": (keep * cross_entropy(ulb_s.logits, pseudo)).sum() / keep.sum().clamp(min=1),
        }
        on = float(step.fraction >= cfg.warm_up)
        weights = {"cal": on * cfg.cal_weight, "ova_cal": on * cfg.ova_cal_weight, "fix": on * cfg.fix_weight}
        return Losses(terms, weights | {"ova": cfg.ova_weight, "socr": cfg.socr_weight}, {"selected": on * keep.mean()})

    @torch.no_grad()
    def select(self, weak: HeadOutputs) -> tuple[Tensor, Tensor]:
        """Pseudo-labels (U,) and 1 for each image in use (U,), else 0, from the scaled heads on the weak view."""
        confidence, pseudo = weak.scaled.softmax(-1).max(-1)
        inlier = weak.inlier()
        keep = (inlier >= self.cfg.inlier_threshold) & (inlier > 0.5) & (confidence >= self.cfg.threshold)
        return pseudo, keep.to(confidence.dtype)

    @torch.no_grad()
    def calibration_targets(self, weak: HeadOutputs, targets: Tensor) -> tuple[Tensor, Tensor]:
        """For classifier and detector (B, C) each: the true class gets q; the others share 1 - q, or get 1 - q each.

        The unscaled confidence selects the bin.
        """
        num_classes = self.info.num_classes
        of_class = smoothed_confidence(weak.logits.softmax(-1).amax(-1), self.class_profile, 1 / num_classes)[:, None]
        of_ova = smoothed_confidence(inlier_probabilities(weak.ova).amax(-1), self.ova_profile, 1 / 2)[:, None]
        classes = targets * of_class + (1 - targets) * (1 - of_class) / (num_classes - 1)
        return classes, targets * of_ova + (1 - targets) * (1 - of_ova)

    @torch.no_grad()
    def on_period_start(self, ctx: Context) -> None:
        """Compute the accuracy profiles of both heads on the held-out images."""
        if ctx.step.fraction < self.cfg.warm_up:
            return
        scan = ctx.scan("heldout", weights="live", view="none")
        parts = [(batch.targets, prediction.features) for batch, prediction in scan]
        targets, feats = (torch.cat(part) for part in zip(*parts, strict=True))
        outputs: HeadOutputs = self.heads(feats)
        self.class_profile.copy_(bin_accuracies(outputs.scaled.softmax(-1), targets, self.cfg.bins))
        self.ova_profile.copy_(bin_accuracies(inlier_probabilities(outputs.scaled_ova), targets, self.cfg.bins))


def ova_loss(logits: Tensor, target: Tensor) -> Tensor:
    """One-vs-all loss of (n, 2C) logits against inlier targets (n, C): the inlier parts of all classes are summed,
    of the outlier parts only the hardest counts."""
    log_out, log_in = ova_log_probabilities(logits)
    return ((-target * log_in).sum(-1) + ((target - 1) * log_out).amax(-1)).mean()


def bin_of(confidence: Tensor, bins: int) -> Tensor:
    """The bin of each confidence (n,); each bin holds its upper border but not its lower one."""
    return ((confidence * bins).ceil().long() - 1).clamp(0, bins - 1)


def bin_accuracies(probs: Tensor, targets: Tensor, bins: int) -> Tensor:
    """Accuracy per bin of confidence (bins,), clamped into the bin itself; EMPTY for empty bins.

    ``probs`` and the one-hot ``targets`` are (n, C).
    """
    confidence, pred = probs.max(-1)
    index, correct = bin_of(confidence, bins), pred == targets.argmax(-1)
    counts = torch.bincount(index, minlength=bins)
    accuracy = torch.bincount(index[correct], minlength=bins) / counts.clamp(min=1)
    borders = torch.arange(bins + 1, device=index.device) / bins
    return torch.where(counts > 0, accuracy.clamp(borders[:-1], borders[1:]), EMPTY)


def smoothed_confidence(confidence: Tensor, profile: Tensor, floor: float) -> Tensor:
    """q (n,): the accuracy of each confidence's bin, at least ``floor``; in empty bins the confidence itself."""
    accuracy = profile[bin_of(confidence, len(profile))]
    return torch.where(accuracy == EMPTY, confidence, accuracy.clamp(min=floor))
