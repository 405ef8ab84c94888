"""SAGE: relations between samples are more reliable than pseudo-labels, so learn from relations.

Every unlabelled view is projected to z and placed relative to fixed simplex anchors; the affinities make a random
walk, beta steps of which are the structural consensus G, the target of pairwise similarities (L_con). A second term
is consistency across views (L_sim). Pseudo-labels of the primary head, weighted by confidence and top-two margin
(DRP), train an auxiliary head only; the primary head sees true labels and is the one that predicts.

Paper: "Beyond Distribution Estimation: Simplex Anchored Structural Inference Towards Universal Semi-Supervised
Learning", ICML 2026. Official code:
https://github.com/Yaxin-ML/SAGE at d3f3ca7 (read for facts; it has no licence, nothing is copied from it).

| symbol | name here | equation |
|---|---|---|
| P, K | ``anchors`` | Eq. (5), ``ops.simplex.simplex_anchors`` |
| a_i, lambda | ``ops.graph.relational_embedding``, ``ridge`` | Eq. (1), (2) |
| G, beta, L_con | ``ops.graph.contrast_loss``, ``walk_steps``, term ``con`` | Eq. (3) |
| L_sim | ``ops.graph.consistency_loss``, term ``sim`` | Eq. (4) |
| W(q_max) W(q_gap) = w | ``reliability`` | Eq. (6), ``ops.stats.TruncatedGaussian`` |
| L_cls | term ``sup`` | Eq. (7) |
| L_aux | term ``aux`` | Eq. (8) |
| L_total | ``Losses.total`` | Eq. (9) |
| y* | ``Method.predict`` | Eq. (10) |

Deviations. ``form`` names four sets of settings; docs/sage.md has the table of their differences. ``released`` follows
the published code, but for its rotation head, which takes part in nothing and is left out. ``default`` is ``released``
with the cross blocks of the similarity matrix in order (the published code has them swapped), with the exact thin
L_con, without the labelled strong view, which entered no loss, and with PyTorch's initialisation of the projection head
(the released network initialises every linear layer with Xavier normal weights and zero bias). ``paper`` is the text to
the letter. ``consensus`` is ours, for few labels and short runs: the labels, spread over the nearest neighbours in the
whole pool, share in the pseudo-labels, and the shipped classifier is refitted to them.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from unissl.methods.base import Context, Method, MethodConfig, Network, forward_concat, xavier_linear
from unissl.ops.consensus import MAX_POOL, pool_consensus
from unissl.ops.graph import consistency_loss, contrast_loss
from unissl.ops.losses import cross_entropy, one_hot, smooth
from unissl.ops.simplex import simplex_anchors
from unissl.ops.stats import TruncatedGaussian, confidence_and_margin
from unissl.types import Batch, DataInfo, Losses, Outputs, Step, Stream

FORMS: dict[str, dict[str, Any]] = {
    "default": {},
    "released": {"cross": "swapped", "graph_impl": "dense", "labelled_strong": True, "projection_init": "xavier"},
    "paper": {
        "normalise": False,
        "nodes": "weak",
        "diagonal": "keep",
        "sim_temperature": 1.0,
        "graph_temperature": 1.0,
        "self_bias": 0.0,
        "walk_steps": 5,
        "smoothing": 0.0,
        "n_sigma": 1.0,
        "prior_adjustment": False,
    },
    "consensus": {"pseudo_labels": "consensus", "readout": "consensus"},
}
"""What each form sets differently from the defaults of :class:`SAGEConfig`."""

CONSENSUS_UPDATES = 20
"""The consensus of the pool is computed at most so many times in a run: neighbours in a large pool take time."""

FEW_CLASSES = 10
"""Up to this many classes the published settings are sharper; beyond, they are softer and the walk is shorter."""


class SAGEConfig(MethodConfig):
    name: Literal["sage"] = "sage"
    short_run: ClassVar[dict[str, Any]] = {"drp_momentum": 0.99, "form": "consensus"}
    feature_run: ClassVar[dict[str, Any]] = {"form": "default"}
    form: Literal["default", "released", "paper", "consensus"] = "default"
    """Which set of settings to start from; explicit settings win."""

    pseudo_labels: Literal["head", "consensus"] = "head"
    """Where pseudo-labels come from: the primary head, or its mean with the given labels, spread over the whole pool
    by the features at the start of the period; in the first one, and beyond ``MAX_POOL`` images, the head decides."""

    auxiliary: bool = True
    """Pseudo-labels train an auxiliary head (AB); off: they train the primary head."""
    weighting: Literal["drp", "threshold", "none"] = "drp"
    """Weight of pseudo-labels: DRP, a cut-off on confidence as in FixMatch, or all alike."""
    contrastive: bool = True
    """Structural contrastive loss L_con, half of GRI."""
    consistency: bool = True
    """Cross-view consistency L_sim, the other half of GRI."""

    ridge: float = Field(default=0.1, gt=0)
    """lambda of the ridge problem."""
    walk_steps: int | None = Field(default=None, ge=1)
    """beta, steps of the random walk; by default 5 up to ten classes and 3 beyond."""
    num_anchors: int | None = Field(default=None, ge=2)
    """K, number of anchors; by default d + 1."""
    anchor_seed: int | None = Field(default=None, ge=0)
    """Seed of the anchors' orientation, by default 0; without effect if num_anchors is unset and graph_impl is thin."""
    sim_temperature: float | None = Field(default=None, gt=0)
    """Temperature of the pairwise similarities; by default 0.5 up to ten classes and 1 beyond."""
    graph_temperature: float | None = Field(default=None, gt=0)
    """Temperature of the transition matrix; by default 0.25 up to ten classes and 0.5 beyond."""
    self_bias: float = 2.0
    """Added to the affinity of a view with itself and with the other view of its image."""
    normalise: bool = True
    """Scale z to unit length before similarities and affinities."""
    nodes: Literal["both", "weak"] = "both"
    """Nodes of the graph: both views of every unlabelled image, or the weak ones."""
    cross: Literal["stacked", "swapped"] = "stacked"
    """Layout of the blocks between weak and strong views."""
    diagonal: Literal["drop", "keep"] = "drop"
    """Whether a node's similarity with itself counts in L_con."""
    graph_impl: Literal["thin", "dense"] = "thin"
    """How L_con is computed; both are exact."""

    smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Label smoothing, all the time in L_cls and at first in L_aux."""
    smoothing_phase: float = Field(default=30 / 256, ge=0, le=1)
    """Share of the budget during which L_aux is smoothed too."""
    drp_momentum: float = Field(default=0.999, ge=0, lt=1)
    """Momentum of the running mean and variance in DRP."""
    n_sigma: float = Field(default=2.0, gt=0)
    """Sharpness of the DRP kernel: its width is sigma / n_sigma."""
    threshold: float = Field(default=0.95, ge=0, le=1)
    """Cut-off of ``weighting = "threshold"``."""
    prior_adjustment: bool = True
    """Add log pi_l to the logits of labelled images."""
    labelled_strong: bool = False
    """Also forward a strong view of the labelled images, which enters no loss but moves BatchNorm."""
    projection_init: Literal["torch", "xavier"] = "torch"
    """Linear layers of the projection head start as PyTorch's, or with Xavier normal weights and zero bias."""

    @model_validator(mode="before")
    @classmethod
    def _start_from_form(cls, values: Any) -> Any:
        if isinstance(values, dict):
            form = str(values.get("form", "default"))  # the field itself rejects an unknown one
            return {**FORMS.get(form, {}), **values}
        return values

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.graph_impl == "thin" and self.cross == "swapped":
            raise ValueError("swapped cross blocks need method.graph_impl = 'dense'")
        if self.graph_impl == "thin" and self.diagonal == "drop" and not self.normalise:
            raise ValueError("a dropped diagonal without normalise needs method.graph_impl = 'dense'")
        if self.nodes == "weak" and self.cross == "swapped":
            raise ValueError("swapped cross blocks need method.nodes = 'both'")
        if self.form in ("released", "paper") and self.readout != "head":
            raise ValueError(f"the form {self.form} predicts with its head; leave out method.readout or method.form")
        return self

    def for_data(self, num_classes: int) -> Self:
        few = num_classes <= FEW_CLASSES
        by_classes = {"walk_steps": (5, 3), "sim_temperature": (0.5, 1.0), "graph_temperature": (0.25, 0.5)}
        missing = {key: pair[0 if few else 1] for key, pair in by_classes.items() if getattr(self, key) is None}
        return self.model_copy(update=missing)


def unit_rows(z: Tensor) -> Tensor:
    """Rows of length one. A row without a finite, positive length becomes NaN, so that the loss stops the run."""
    length = z.norm(dim=1, keepdim=True)
    return torch.div(z, torch.where(length.isfinite(), length, torch.nan))


def projection_head(dim: int, init: Literal["torch", "xavier"]) -> nn.Sequential:
    """f (n, d) -> z (n, d)."""
    linear = xavier_linear if init == "xavier" else nn.Linear
    norm = nn.BatchNorm1d(dim, momentum=0.001, eps=0.001)
    return nn.Sequential(linear(dim, dim), norm, nn.LeakyReLU(0.1), linear(dim, dim))


class SAGE(Method):
    Config = SAGEConfig
    title, venue, family = "SAGE", "ICML 2026", "universal"
    idea = "relations between images from a random walk on a graph; see [docs/sage.md](docs/sage.md)"
    link: ClassVar[str] = "https://github.com/Yaxin-ML/SAGE"

    def __init__(self, cfg: SAGEConfig, info: DataInfo) -> None:
        super().__init__(cfg.for_data(info.num_classes), info)
        self.aux = xavier_linear(info.feat_dim, info.num_classes) if cfg.auxiliary else None
        relational = cfg.contrastive or cfg.consistency
        self.project = projection_head(info.feat_dim, cfg.projection_init) if relational else None
        self.drp_confidence = TruncatedGaussian(1 / info.num_classes, 1.0, cfg.drp_momentum, cfg.n_sigma)
        self.drp_margin = TruncatedGaussian(1 / info.num_classes, 1.0, cfg.drp_momentum, cfg.n_sigma)
        prior = info.log_prior() if cfg.prior_adjustment else torch.zeros(info.num_classes)
        self.log_prior = nn.Buffer(prior)
        anchors = simplex_anchors(info.feat_dim, cfg.num_anchors, cfg.anchor_seed or 0)  # Eq. (5)
        self.anchors = nn.Buffer(anchors)
        uses_consensus = cfg.pseudo_labels == "consensus" and info.num_unlabelled <= MAX_POOL
        shape = (info.num_unlabelled, info.num_classes)
        self.consensus = nn.Buffer(torch.full(shape, 1 / info.num_classes)) if uses_consensus else None

    @classmethod
    def streams(cls, cfg: SAGEConfig) -> dict[str, Stream]:
        labelled = ("weak", "strong") if cfg.labelled_strong else ("weak",)
        return {"labelled": Stream("labelled", labelled), "unlabelled": Stream("unlabelled", ("weak", "strong"))}

    def on_period_start(self, ctx: Context) -> None:
        """Compute the consensus of the pool, unless it is not in use or the network is still random."""
        every = math.ceil(ctx.step.periods / CONSENSUS_UPDATES)
        if self.consensus is None or ctx.step.period == 0 or ctx.step.period % every:
            return
        parts = [(out.features, batch.targets.argmax(-1)) for batch, out in ctx.scan("labelled")]
        feats, labels = (torch.cat(part) for part in zip(*parts, strict=True))
        pool = torch.cat([out.features for _, out in ctx.scan("unlabelled")])
        self.consensus.copy_(pool_consensus(feats, labels, pool, self.info.num_classes))

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        lb, ulb = batch["labelled"], batch["unlabelled"]
        unused = [lb.views["strong"]] if self.cfg.labelled_strong else []
        parts = forward_concat(net, lb.views["weak"], *unused, ulb.views["weak"], ulb.views["strong"])
        lb_w, ulb_w, ulb_s = parts[0], parts[-2], parts[-1]

        weight, pseudo = self.reliability(self.pool_probs(ulb_w.logits.detach(), ulb.index))
        terms = {"sup": self.supervised(lb_w.logits, smooth(lb.targets, self.cfg.smoothing))}  # Eq. (7)
        terms |= self.pseudo_label_terms(lb_w, ulb_s, lb.targets, pseudo, weight, step)  # Eq. (8)
        terms |= self.relational_terms(parts)  # Eq. (3), (4)
        return Losses(terms, logs={"selected": weight.mean()})

    def supervised(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy of labelled images with log pi_l added to the logits."""
        return cross_entropy(logits + self.log_prior, target).mean()

    def pool_probs(self, logits: Tensor, index: Tensor) -> Tensor:
        """Probabilities (U, C) of unlabelled images, from the primary head's weak-view logits (U, C) and, if it is in
        use, the consensus."""
        probs = logits.softmax(-1)
        return probs if self.consensus is None else (probs + self.consensus[index].to(probs)) / 2

    def reliability(self, probs: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (U,) and pseudo-labels (U,) from probabilities (U, C), Eq. (6)."""
        confidence, margin = confidence_and_margin(probs)
        if self.cfg.weighting == "drp":
            weight = self.drp_confidence(confidence) * self.drp_margin(margin)
        elif self.cfg.weighting == "threshold":
            weight = (confidence >= self.cfg.threshold).to(probs.dtype)
        else:
            weight = torch.ones_like(confidence)
        return weight, probs.argmax(-1)

    def pseudo_label_terms(
        self, lb_w: Outputs, ulb_s: Outputs, targets: Tensor, pseudo: Tensor, weight: Tensor, step: Step
    ) -> dict[str, Tensor]:
        """Weighted pseudo-label loss, on the auxiliary head with its supervised part, or on the primary head."""
        eps = self.cfg.smoothing if step.fraction < self.cfg.smoothing_phase else 0.0
        target = smooth(one_hot(pseudo, self.info.num_classes, targets.dtype), eps)
        if self.aux is None:
            return {"unsup": (weight * cross_entropy(ulb_s.logits, target)).mean()}
        unsup = (weight * cross_entropy(self.aux(ulb_s.feat), target)).mean()
        return {"aux": unsup + self.supervised(self.aux(lb_w.feat), smooth(targets, eps))}

    def relational_terms(self, parts: list[Outputs]) -> dict[str, Tensor]:
        """L_con and L_sim of the unlabelled views; all groups share the projection head's BatchNorm."""
        if self.project is None:
            return {}
        cfg = self.cfg
        feats = [part.feat for part in parts]
        z_w, z_s = self.project(torch.cat(feats)).split([len(f) for f in feats])[-2:]
        terms = {}
        if cfg.contrastive:
            nodes_w, nodes_s = (unit_rows(z_w), unit_rows(z_s)) if cfg.normalise else (z_w, z_s)
            terms["con"] = contrast_loss(
                nodes_w,
                nodes_s if cfg.nodes == "both" else nodes_s[:0],
                # With K = d + 1 the anchors act through one number only, which is what None asks for.
                anchors=None if cfg.graph_impl == "thin" and cfg.num_anchors is None else self.anchors,
                ridge=cfg.ridge,
                steps=cfg.walk_steps,
                sim_temperature=cfg.sim_temperature,
                graph_temperature=cfg.graph_temperature,
                self_bias=cfg.self_bias,
                cross=cfg.cross,
                diagonal=cfg.diagonal,
                exact=cfg.graph_impl,
                unit=cfg.normalise,
            )
        if cfg.consistency:
            terms["sim"] = consistency_loss(z_w, z_s, feats[-2], feats[-1])
        return terms
