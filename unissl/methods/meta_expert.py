"""Meta-Expert: three experts for frequent, middling and rare classes, and a gate that picks the expert for each sample.

Experts that are trained with different logit adjustments are good at different classes. A gate reads the predictions of
all three and features from four depths of the network, since shallow ones are less biased towards frequent classes; it
learns to which group of classes (head, medium, tail) a sample belongs, and the experts are mixed accordingly. Each
expert reads the last map through three BatchNorms: all confident pseudo-labels train the first, those outside the head
the second, those in the tail the third. Which experts learn consistency of the mixture is decided once, from the second
expert's predictions for the pool early in training.

Paper: Hou and Jia, "A Square Peg in a Square Hole: Meta-Expert for Long-Tailed Semi-Supervised Learning", ICML 2025,
https://arxiv.org/abs/2505.16341. Official code: https://github.com/yaxinhou/Meta-Expert (read for facts only).

| symbol | name here | where |
|---|---|---|
| l_k^H, l_k^M, l_k^T | ``HeadOutputs.by_part`` | expert k on the map after each of the three BatchNorms |
| l_k | ``HeadOutputs.logits`` | their mean |
| l_k + tau_k log pi_l | ``HeadOutputs.adjusted``, ``taus`` | term ``sup``, and input of the gate |
| v | ``HeadOutputs.gate`` | multi-depth fusion and gate, ``Gate`` |
| w' | ``HeadOutputs.weights`` | gate times the expert's confidence inside its group, ``Experts.forward`` |
| cut1, cut2 | ``cuts`` | borders of head, medium and tail |
| masked H(yhat_k, l_k^part) | term ``unsup``, ``threshold`` | confident pseudo-labels |
| F = sum_k w'_k bar(l_k + tau_k log pi_l) | term ``fusion`` | class-balanced, with that of v, ``balance`` |
| F_k = sum_part w'_part bar(l_k^part) | term ``fusion_unsup`` | consistency of both views, with that of v |
| om | ``MetaExpert.consistency_weights`` | which experts learn that consistency |
| sum_k w'_k l_k | ``Experts.predict`` | prediction |

bar(l) is l minus its smallest entry.

Deviations. The gate is trained; in the published code the optimiser was built before the gate, which kept its random
initialisation (``gate = "untrained"``). Confident predictions are counted; the published code adds at most one per
class and step, decided by the last sample of that class (``counting = "indexed"``). Groups go by labelled count, ties
by class number, which for balanced or sorted labels is the published order by class number. The published borders are 2
and 4 of ten classes; other numbers of classes get the same shares (one fifth each for head and medium, at least one
class; two classes leave the tail empty, and the third expert then has no group of its own). Warm-up is that of the
official configurations (``est_epoch`` 18); the port's default of 0 is ``warm_up`` 1/256. The pool's batch is that of
the common protocol, seven times the labelled one, not twice. Equation numbers are left out: these facts are the code's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, cast

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from unissl.methods.base import InferenceModel, Method, MethodConfig, Needs, Network, xavier_linear
from unissl.ops.losses import cross_entropy, one_hot
from unissl.types import Batch, DataInfo, Losses, Outputs, Prediction, Step

DEPTHS = ("stem", "stage1", "stage2", "stage3")
EXPERTS = 3
"""As many as groups of classes and as BatchNorms before the experts."""


class MetaExpertConfig(MethodConfig):
    name: Literal["meta-expert"] = "meta-expert"
    short_run: ClassVar[dict[str, Any]] = {"bn_momentum": 0.1}
    threshold: float = Field(default=0.95, ge=0, le=1)
    """Confidence from which an expert's pseudo-label is used."""
    unsup_weight: float = Field(default=1.0, ge=0)
    """lambda_u, weight of both unlabelled terms."""
    taus: tuple[float, float, float] = (0.0, 2.0, 4.0)
    """Strength of the logit adjustment of each expert."""
    cuts: tuple[PositiveInt, PositiveInt] | None = None
    """Number of head classes, and of head and medium classes; by default a fifth and two fifths of the classes."""
    balance: float = Field(default=0.99, ge=0, lt=1)
    """b of the class-balanced weights (1 - b) / (1 - b^n) for n labels."""
    warm_up: float = Field(default=19 / 256, ge=0, le=1)
    """Share of the budget before the second expert's predictions are counted."""
    estimate: float = Field(default=1 / 256, ge=0, le=1)
    """Share of the budget, and at least one step, in which they are counted; after it the gate is trained."""
    counting: Literal["true", "indexed"] = "true"
    """Count every confident prediction, or as the published code does, the last of each class in a step."""
    gate: Literal["trained", "untrained"] = "trained"
    """Whether the gate learns; untrained, as published, it keeps its random initialisation but passes gradients on."""
    bn_momentum: float = Field(default=0.001, gt=0, le=1)
    """Weight of one batch in the running statistics of the four depths; short runs need more, about 0.1."""

    @model_validator(mode="after")
    def _check_cuts(self) -> Self:
        if self.cuts is not None and self.cuts[0] >= self.cuts[1]:
            raise ValueError("the first of cuts must be smaller than the second")
        return self

    def for_data(self, num_classes: int) -> Self:
        if self.cuts is not None:
            return self
        head = max(1, round(num_classes / 5))
        return self.model_copy(update={"cuts": (head, max(head + 1, round(2 * num_classes / 5)))})


@dataclass(frozen=True)
class HeadOutputs:
    """Outputs of experts and gate: (n, 3 experts, 3 parts, C), twice (n, 3, C), and twice (n, 3)."""

    by_part: Tensor
    logits: Tensor
    adjusted: Tensor
    gate: Tensor
    weights: Tensor

    def split(self, sizes: list[int]) -> list[HeadOutputs]:
        fields = [torch.split(value, sizes) for value in vars(self).values()]
        return [HeadOutputs(*parts) for parts in zip(*fields, strict=True)]

    def fused(self) -> Tensor:
        """F (n, C): the experts' adjusted logits, mixed by the gate."""
        return (self.weights[:, :, None] * above_min(self.adjusted)).sum(1)

    def fused_parts(self) -> Tensor:
        """F_k (n, 3, C): each expert's three parts, mixed by the gate."""
        return (self.weights[:, None, :, None] * above_min(self.by_part)).sum(2)


class Gate(nn.Module):
    """Features of four depths, pooled, and the experts' probabilities (n, 3C) -> logits of the three groups (n, 3)."""

    def __init__(self, dims: list[int], num_classes: int) -> None:
        super().__init__()
        widths = [*dims, 2 * dims[-1]]
        self.first = nn.ModuleList(dense(a, b) for a, b in zip(dims, widths[1:], strict=True))
        self.second = nn.ModuleList(dense(a, b) for a, b in zip(widths[1:], [*widths[2:], widths[-1]], strict=True))
        self.last = nn.Sequential(dense(widths[-1] + EXPERTS * num_classes, 128), dense(128, 64), dense(64, EXPERTS))

    def forward(self, depths: list[Tensor], probs: Tensor) -> Tensor:
        h: Tensor | float = 0.0
        k: Tensor | float = 0.0
        for first, second, depth in zip(self.first, self.second, depths, strict=True):
            h = cast(Tensor, first(depth + h))
            k = cast(Tensor, second(h + k))
        return cast(Tensor, self.last(torch.cat([cast(Tensor, k), probs], 1)))


class ScaleAndShift(nn.Module):
    """gamma x + beta, the learnt part of a BatchNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x + self.bias


class Experts(nn.Module):
    """All that prediction needs besides the network, whose head is the first expert."""

    def __init__(self, cfg: MetaExpertConfig, info: DataInfo) -> None:
        super().__init__()
        dims = [info.tap_dims[name] for name in DEPTHS]
        self.others = nn.ModuleList(xavier_linear(info.feat_dim, info.num_classes) for _ in range(EXPERTS - 1))
        # Three BatchNorms of the same map have the same statistics: these are computed once, and since a mean
        # over the map follows, scale and shift are applied after it.
        self.standardise = nn.BatchNorm2d(info.feat_dim, affine=False)
        self.norms = nn.ModuleList(ScaleAndShift(info.feat_dim) for _ in range(EXPERTS))
        self.depths = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(dim, eps=1e-3, momentum=cfg.bn_momentum), nn.LeakyReLU(0.1)) for dim in dims
        )
        self.gate = Gate(dims, info.num_classes).requires_grad_(cfg.gate == "trained")
        self.adjustment = nn.Buffer(torch.tensor(cfg.taus)[:, None] * info.log_prior())  # (3, C)
        assert cfg.cuts is not None
        rank = by_falling_count(info).argsort()
        self.group = nn.Buffer((rank >= cfg.cuts[0]).long() + (rank >= cfg.cuts[1]).long())  # (C,)

    def forward(self, head: nn.Linear, out: Outputs) -> HeadOutputs:
        standard = pooled(self.standardise(out.taps["map"]))
        feats = torch.stack([norm(standard) for norm in self.norms], 1)  # (n, 3, D)
        by_part = torch.stack([expert(feats) for expert in (head, *self.others)], 1)
        logits = by_part.mean(2)
        adjusted = logits + self.adjustment
        depths = [pooled(branch(out.taps[name])) for name, branch in zip(DEPTHS, self.depths, strict=True)]
        gate = self.gate(depths, adjusted.softmax(-1).flatten(1))
        members = one_hot(self.group, EXPERTS, logits.dtype).T  # (3, C)
        in_group = (logits.softmax(-1) * members).amax(-1)  # each expert's confidence inside its group
        return HeadOutputs(by_part, logits, adjusted, gate, (in_group * gate.softmax(-1)).softmax(-1))

    def predict(self, net: Network, x: Tensor) -> Prediction:
        out = net(x)
        outputs = self(net.head, out)
        return Prediction((outputs.weights[:, :, None] * outputs.logits).sum(1), out.feat)


class MetaExpert(Method):
    Config = MetaExpertConfig
    title, venue, family = "Meta-Expert", "ICML 2025", "long-tailed"
    idea = "three experts for head, middle and tail classes, and a gate"
    link = "https://arxiv.org/abs/2505.16341"
    needs = frozenset({Needs.TAPS})
    taps = (*DEPTHS, "map")

    def __init__(self, cfg: MetaExpertConfig, info: DataInfo) -> None:
        super().__init__(cfg.for_data(info.num_classes), info)
        self.experts = Experts(self.cfg, info)
        labels = torch.tensor(info.labelled_counts)
        labels_of_group = torch.bincount(self.experts.group, labels, minlength=EXPERTS)
        self.order = nn.Buffer(by_falling_count(info))
        self.class_weight = nn.Buffer(balanced_weights(labels, cfg.balance))
        self.group_weight = nn.Buffer(balanced_weights(labels_of_group, cfg.balance))
        self.counts = nn.Buffer(torch.zeros(info.num_classes))

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        lb, ulb = batch["labelled"], batch["unlabelled"]
        views = [lb.views["weak"], ulb.views["weak"], ulb.views["strong"]]
        # Together as far as the experts, whose BatchNorms see labelled and unlabelled images as one batch.
        outputs = self.experts(net.head, net(torch.cat(views)))
        lb_w, ulb_w, ulb_s = outputs.split([len(view) for view in views])

        confidence, pseudo = ulb_w.logits.detach().softmax(-1).max(-1)  # (U, 3)
        keep = (confidence >= self.cfg.threshold).to(confidence.dtype)
        begin = round(self.cfg.warm_up * step.total)
        end = max(begin + 1, round((self.cfg.warm_up + self.cfg.estimate) * step.total))
        if begin <= step.iteration < end:
            self.count(pseudo[:, 1], keep[:, 1])

        sup = torch.stack([cross_entropy(lb_w.adjusted[:, k], lb.targets).mean() for k in range(EXPERTS)]).sum()
        terms = {"sup": sup, "unsup": self.unsupervised(ulb_s.by_part, pseudo, keep)}
        if step.iteration >= end:
            terms |= {"fusion": self.fusion(lb_w, lb.targets), "fusion_unsup": self.fusion_consistency(ulb_w, ulb_s)}
        else:  # constants, not losses of weight 0: the gate gets no gradient, and so no weight decay, before it is used
            terms |= dict.fromkeys(("fusion", "fusion_unsup"), sup.new_zeros(()))
        weights = dict.fromkeys(("unsup", "fusion_unsup"), self.cfg.unsup_weight)
        return Losses(terms, weights, {"selected": keep.mean()})

    def unsupervised(self, by_part: Tensor, pseudo: Tensor, keep: Tensor) -> Tensor:
        """Confident pseudo-labels (U, 3) against the strong view's parts, per expert over the terms in use.

        The part after the first BatchNorm learns from all of them, the next two only from rarer groups.
        """
        parts = torch.arange(EXPERTS, device=pseudo.device)
        use = keep[:, :, None] * (self.experts.group[pseudo][:, :, None] >= parts)  # (U, 3 experts, 3 parts)
        target = pseudo[:, :, None].expand(-1, -1, EXPERTS)
        loss = cross_entropy(by_part.flatten(0, 2), target.flatten()).view_as(use)
        return ((use * loss).sum((0, 2)) / (use.sum((0, 2)) + 1e-12)).sum()

    def fusion(self, lb_w: HeadOutputs, targets: Tensor) -> Tensor:
        """Labelled images: the mixture predicts the class and the gate its group, both balanced by label counts."""
        of_group = targets @ one_hot(self.experts.group, EXPERTS, targets.dtype)  # (B, 3)
        return weighted_mean(cross_entropy(lb_w.fused(), targets), targets @ self.class_weight) + weighted_mean(
            cross_entropy(lb_w.gate, of_group), of_group @ self.group_weight
        )

    def fusion_consistency(self, ulb_w: HeadOutputs, ulb_s: HeadOutputs) -> Tensor:
        """Unlabelled images: predictions of mixtures and gate on the weak view are targets of the strong, without a
        mask."""
        weak, strong, om = ulb_w.fused_parts().argmax(-1), ulb_s.fused_parts(), self.consistency_weights()
        gate = cross_entropy(ulb_s.gate, ulb_w.gate.argmax(-1)).mean()
        return gate + sum(om[k] * cross_entropy(strong[:, k], weak[:, k]).mean() for k in range(EXPERTS))

    @torch.no_grad()
    def count(self, pseudo: Tensor, keep: Tensor) -> None:
        """Count the second expert's confident predictions (U,) per class."""
        of_class = one_hot(pseudo, self.info.num_classes, keep.dtype)  # (U, C)
        if self.cfg.counting == "indexed":  # of each class only the last sample stays, confident or not
            of_class = of_class * (of_class.flip(0).cumsum(0).flip(0) == 1)
        self.counts.add_(keep @ of_class)

    def consistency_weights(self) -> Tensor:
        """om (3,): the third expert if the pool's order of classes is reversed, the second if it is even, else the
        first."""
        common, rare = self.counts[self.order].tensor_split([self.info.num_classes // 2])
        reversed_order = (rare.max() > 2 * common.min()) & (common.max() < 2 * rare.min())
        even = self.counts.max() < 2 * self.counts.min()
        chosen = torch.stack([~(reversed_order | even), even, reversed_order]).to(self.counts.dtype)
        return torch.where(self.counts.any(), chosen, 1 / EXPERTS)

    def predict(self, net: Network, x: Tensor) -> Prediction:
        return self.experts.predict(net, x)

    def inference_module(self, net: nn.Module) -> nn.Module:
        return InferenceModel(net, self.experts)


def pooled(maps: Tensor) -> Tensor:
    """Mean over each map (n, D, h, w), written so that its gradient comes in the memory order of the maps."""
    return maps.permute(0, 2, 3, 1).mean((1, 2))


def dense(width_in: int, width_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width_in, width_out), nn.SiLU())


def above_min(logits: Tensor) -> Tensor:
    """bar(l): logits from zero upwards, so that weights act on all experts alike."""
    return logits - logits.amin(-1, keepdim=True)


def by_falling_count(info: DataInfo) -> Tensor:
    """The classes (C,), those with the most labels first; equal ones keep their order."""
    return torch.tensor(info.labelled_counts).argsort(descending=True, stable=True)


def balanced_weights(labels: Tensor, balance: float) -> Tensor:
    """(1 - b) / (1 - b^n), scaled to a mean of 1; nothing for what has no labels."""
    raw = torch.where(labels > 0, (1 - balance) / (1 - balance ** labels.clamp(min=1).double()), 0.0)
    return (raw / raw.mean()).to(torch.get_default_dtype())


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    return (weights * values).sum() / weights.sum()
