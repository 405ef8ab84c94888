"""SCOMatch: outliers are an extra class, whose labels are the images of the pool that fit the known classes least.

A detector that is trained on a few labelled images of the known classes overtrusts them: it predicts outlier for known
images that differ a little. SCOMatch adds a class for outliers, with labels. Every step pushes the unlabelled image
with the least confident known class into a queue; images drawn from it are labelled as outliers. Self-training then
runs twice on one head: on one batch of the pool over all C + 1 classes (open), with a cut-off for outliers that falls
while they are rarely predicted, and on another over the C known ones (close).

Paper: Wang, Xiang, Huang, Mao, Xiao and Yamasaki, "SCOMatch: Alleviating Overtrusting in Open-set Semi-supervised
Learning", ECCV 2024, https://arxiv.org/abs/2409.17512. Official code: https://github.com/komejisatori/SCOMatch (read
for facts only).

| symbol | name here | equation |
|---|---|---|
| l, p | ``heads`` | C + 1 logits without bias and their softmax; index C is the outlier |
| max_{c<C} p(c) | ``push`` | score of an image; the K_m = ``pushes`` lowest enter the queue |
| queue | ``OutlierQueue`` | max(8C, 256) weak images with their scores |
| L_sup,close | term ``sup`` | mean H(y, l) over C + 1 logits |
| L_sup,open | term ``sup_open`` | mean 1[score < tau] H(C, l) over images from the queue |
| L_unsup,open | term ``unsup_open`` | mean mask H(argmax p(x_w), l(x_s)) over C + 1 logits |
| mask | ``open_mask`` | inlier with p >= tau, or outlier with p >= tau_ood |
| tau_ood | ``tau_ood``, ``move_threshold`` | tau times confident outliers per confident inlier, in [0.75, 0.95] |
| L_unsup,close | term ``unsup_close`` | mean mask H(argmax_{c<C} l(x_w), l(x_s)) over the first C logits |
| p(C) | ``Prediction.outlier`` | outlier score |

Deviations. A close pseudo-label counts if its own image is confident among the C classes and an inlier among the C + 1;
the published code uses the confidence of the image at the same position of the open batch (``close_confidence =
"open"``). Outliers are drawn once as many images were pushed as a labelled batch has, 64 in the paper. Each of the two
unlabelled batches has the configured size; the recipe ``paper`` takes the published 128. tau_ood moves every M // (2
B_u) steps counted from the start of training, and at least one apart; the published code restarts the count in each
epoch. Draws from the queue are a function of the seed and the step number. The published code learns from both views in
L_unsup,open except on CIFAR-10 (``open_views = "both"``). Its unused heads are left out. Equation numbers are left out:
these facts are the code's.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from unissl.methods.base import HeadsMethod, MethodConfig, Network
from unissl.ops.keyed_random import keyed_generator
from unissl.ops.losses import cross_entropy
from unissl.types import Batch, DataInfo, Losses, Prediction, Step, Stream


class SCOMatchConfig(MethodConfig):
    name: Literal["scomatch"] = "scomatch"
    paper_run: ClassVar[dict[str, Any]] = {"batch": {"unlabelled": 128}}
    threshold: float = Field(default=0.95, ge=0, le=1)
    """tau, confidence from which a pseudo-label of a known class is used."""
    outlier_min: float = Field(default=0.75, ge=0, le=1)
    """Least value of tau_ood, the confidence from which a pseudo-label "outlier" is used."""
    outlier_max: float = Field(default=0.95, ge=0, le=1)
    """Greatest value of tau_ood, which it also starts from."""
    queue: int | None = Field(default=None, ge=1)
    """Images in the queue of outliers; by default eight per class and at least 256."""
    pushes: int = Field(default=1, ge=1)
    """K_m, images that enter the queue in each step."""
    open_views: Literal["strong", "both"] = "strong"
    """Views that learn from pseudo-labels of all C + 1 classes."""
    close_confidence: Literal["own", "open"] = "own"
    """Whose confidence a close pseudo-label needs: its own image's, or, as published, that of one of the open batch."""

    def for_data(self, num_classes: int) -> Self:
        return self if self.queue else self.model_copy(update={"queue": max(8 * num_classes, 256)})


class OutlierQueue(nn.Module):
    """The last weak views that fitted the known classes least, with their scores."""

    def __init__(self, size: int, image_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.images = nn.Buffer(torch.zeros(size, *image_shape))
        self.scores = nn.Buffer(torch.zeros(size))
        self.pushed = nn.Buffer(torch.tensor(0))

    @torch.no_grad()
    def push(self, images: Tensor, scores: Tensor, count: int) -> None:
        """Add the ``count`` images with the lowest scores (n,), the lowest first; the oldest are overwritten."""
        rows = scores.sort(stable=True).indices[: min(count, len(self.scores))]
        slots = (self.pushed + torch.arange(len(rows), device=rows.device)) % len(self.scores)
        self.images[slots] = images[rows].to(self.images)
        self.scores[slots] = scores[rows].to(self.scores)
        self.pushed.add_(len(rows))

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images and scores of ``count`` different entries; none before as many were pushed, all if there are fewer."""
        held = min(int(self.pushed), len(self.scores)) if self.pushed >= count else 0
        order = torch.randperm(held, generator=generator)
        rows = order[:count].to(self.scores.device)
        return self.images[rows], self.scores[rows]


class OpenHead(nn.Linear):
    """Feature (n, D) -> logits (n, C + 1), the last for outliers."""

    def __init__(self, feat_dim: int, num_classes: int) -> None:
        super().__init__(feat_dim, num_classes + 1, bias=False)
        nn.init.xavier_normal_(self.weight)

    def predict(self, net: Network, x: Tensor) -> Prediction:
        logits = self(feat := net(x).feat)
        return Prediction(logits[:, :-1], feat, logits.softmax(-1)[:, -1])


class SCOMatch(HeadsMethod):
    Config = SCOMatchConfig
    title, venue, family = "SCOMatch", "ECCV 2024", "open-set"
    idea = "open set: the least confident images train an extra outlier class"
    link = "https://arxiv.org/abs/2409.17512"

    def __init__(self, cfg: SCOMatchConfig, info: DataInfo) -> None:
        super().__init__(cfg.for_data(info.num_classes), info)
        self.heads = OpenHead(info.feat_dim, info.num_classes)
        self.queue = OutlierQueue(self.cfg.queue, info.image_shape)
        self.tau_ood = nn.Buffer(torch.tensor(float(cfg.outlier_max)))
        self.confident = nn.Buffer(torch.zeros(2, dtype=torch.int64))  # inliers, outliers
        self.draw_key = nn.Buffer(torch.randint(2**31, ()))  # the seed decides it, and so the draws

    @classmethod
    def streams(cls, cfg: SCOMatchConfig) -> dict[str, Stream]:
        pool = Stream("unlabelled", ("weak", "strong"))
        return {"labelled": Stream("labelled", ("weak",)), "open": pool, "close": pool}

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        lb, open_, close = batch["labelled"], batch["open"], batch["close"]
        self.move_threshold(step.iteration, len(open_))
        drawn, scores = self.queue.draw(len(lb), keyed_generator(int(self.draw_key), step.iteration))
        unlabelled = (ulb.views[view] for ulb in (open_, close) for view in ("weak", "strong"))
        groups = [lb.views["weak"], drawn, *unlabelled]
        logits = self.heads(net(torch.cat(groups)).feat).split([len(group) for group in groups])
        lb_w, queued, open_w, open_s, close_w, close_s = logits

        c, tau = self.info.num_classes, self.cfg.threshold
        p = open_w.detach().softmax(-1)
        confidence, pseudo = p.max(-1)
        self.queue.push(open_.views["weak"], p[:, :c].amax(-1), self.cfg.pushes)
        use_open = self.open_mask(confidence, pseudo)
        close_confidence, close_pseudo = close_w[:, :c].detach().softmax(-1).max(-1)
        confident = (close_confidence if self.cfg.close_confidence == "own" else confidence) >= tau
        use_close = (confident & (close_w.argmax(-1) < c)).to(p.dtype)

        learning = [open_s] if self.cfg.open_views == "strong" else [open_w, open_s]
        of_queue = (scores < tau) * cross_entropy(queued, torch.full_like(scores, c, dtype=torch.int64))
        terms = {
            "sup": cross_entropy(lb_w, nn.functional.pad(lb.targets, (0, 1))).mean(),
            "sup_open": of_queue.sum() / max(1, len(scores)),
            "unsup_open": torch.stack([(use_open * cross_entropy(view, pseudo)).mean() for view in learning]).mean(),
            "unsup_close": (use_close * cross_entropy(close_s[:, :c], close_pseudo)).mean(),
        }
        selected = torch.cat([use_open, use_close]).mean()
        return Losses(terms, logs={"selected": selected, "tau_ood": self.tau_ood.clone()})

    def open_mask(self, confidence: Tensor, pseudo: Tensor) -> Tensor:
        """1 for pseudo-labels (n,) in use; counts those with confidence tau for the next value of tau_ood."""
        confident, outlier = confidence >= self.cfg.threshold, pseudo == self.info.num_classes
        self.confident.add_(torch.stack([(confident & ~outlier).sum(), (confident & outlier).sum()]))
        return torch.where(outlier, confidence >= self.tau_ood, confident).to(confidence.dtype)

    def move_threshold(self, iteration: int, batch_size: int) -> None:
        """Twice in a pass over the pool, set tau_ood from the confident predictions since the last time."""
        if iteration == 0 or iteration % max(1, self.info.num_unlabelled // (2 * batch_size)):
            return
        inliers, outliers = self.confident
        tau_ood = torch.where(inliers > 0, self.cfg.threshold * outliers / inliers.clamp(min=1), self.cfg.outlier_max)
        self.tau_ood.copy_(tau_ood.clamp(self.cfg.outlier_min, self.cfg.outlier_max))
        self.confident.zero_()
