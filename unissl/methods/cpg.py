"""CPG: reliable pseudo-labels are promoted to the labelled set, whose class distribution is known, unlike the pool's.

After a warm-up, every step counts a vote for the class of each unlabelled image on whose weak and strong view the
network agrees with confidence. Periodically the images with enough votes, nearly all for one class, are added to the
labelled set, with their votes as soft targets. As its class counts are known, logit adjustment makes the primary head
unbiased. Noisy copies of the labelled features augment them, more and wider for rare and scattered classes. An
auxiliary head learns from all pseudo-labels.

Paper: Hou, Han, Jia, Liu and Hou, "Keep It on a Leash: Controllable Pseudo-label Generation Towards Realistic
Long-Tailed Semi-Supervised Learning", NeurIPS 2025, https://arxiv.org/abs/2510.03993. Official code:
https://github.com/yaxinhou/CPG.

| symbol | name here | equation |
|---|---|---|
| n, log n / sum n | ``counts``, ``log_share`` | classes of the current labelled set |
| d | ``vote_prior`` | classes of the chosen images, few or none replaced by the smallest count in use |
| votes, soft target | ``votes``, ``soft`` | relative frequency of the votes |
| s_c, r_c | ``class_radii``, ``radii`` | s_c = mean (cos(f, centre_c) + 1) / 2, r_c = (1/s_c) / sum 1/s |
| k_c | ``copies`` | at first 10, then int(10 n_(C//3) / n_c), n sorted ascending |
| f + eps r_c f / norm f, eps ~ N(0, I) | ``with_copies`` | noisy copies of a labelled feature |
| primary loss | term ``sup`` | mean H(t, l + log n / sum n) over features and copies |
| auxiliary loss | term ``aux`` | mean H(argmax l_aux(x_w), l_aux(x_s)) + mean H(t, l_aux + log n / sum n) |

Deviations. Times are shares of the budget. An image needs more than 12 votes, as published, or, in short runs, a share
of its visits (``min_votes_fraction``; 12 votes are 12/185 of them with the paper's batches and 12,395 images). An
update waits until the pool was seen ``min_visits`` times, of no effect at the paper's length. If nothing is chosen, the
labelled set is the given one, where the published code fails. Centres and radii come from one pass in eval mode; the
published code makes two in train mode, which moves BatchNorm, and takes similarities as ``similarity = "last"`` does.
The noise is a function of the seed and the step number. Its unused rotation head is left out, and so is by default the
labelled strong view, which entered no loss. Labelled batches are reshuffled in each pass; the published code stops
doing so once the set has changed.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from unissl.methods.base import Context, Method, MethodConfig, Network, forward_concat, xavier_linear
from unissl.ops.keyed_random import keyed_generator
from unissl.ops.losses import cross_entropy, one_hot, smooth
from unissl.types import Batch, DataInfo, Losses, Outputs, Step, Stream, StreamBatch

CHUNK = 64
"""Images per batch in the published code's pass over the labelled set."""


class CPGConfig(MethodConfig):
    name: Literal["cpg"] = "cpg"
    short_run: ClassVar[dict[str, Any]] = {"min_votes_fraction": 12 / 185}
    warm_up: float = Field(default=30 / 256, ge=0, le=1)
    """Share of the budget before votes are counted and features copied."""
    update_every: float = Field(default=5 / 256, gt=0, le=1)
    """Share of the budget from one choice of images to the next."""
    min_visits: float = Field(default=2.0, ge=0)
    """How often the pool has to be seen on average before the next choice; it bounds the cost in short runs."""
    threshold: float = Field(default=0.95, ge=0, le=1)
    """Confidence from which a prediction is a vote, before it is lowered by the share of ``smoothing``."""
    min_votes: int = Field(default=12, ge=0)
    """An image is chosen if it has more votes than this since the last choice."""
    min_votes_fraction: float | None = Field(default=None, ge=0, le=1)
    """In place of ``min_votes``: a share of the mean number of visits since the last choice, for short runs."""
    agreement: float = Field(default=0.8, ge=0, le=1)
    """More than this share of an image's votes has to be for one class."""
    smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Label smoothing of the given labels, and in warm-up of the pseudo-labels too."""
    copies: int = Field(default=10, ge=0)
    """Noisy copies of a labelled feature whose class has the usual count."""
    similarity: Literal["all", "last"] = "all"
    """Which images make s_c: all, or, as in the published code, the last of a class in each 64, over their number."""
    labelled_strong: bool = False
    """Also forward a strong view of the labelled images, which enters no loss but moves BatchNorm."""


class CPG(Method):
    Config = CPGConfig
    title, venue, family = "CPG", "NeurIPS 2025", "long-tailed"
    idea = "images with stable predictions join the labelled set"
    link = "https://arxiv.org/abs/2510.03993"

    def __init__(self, cfg: CPGConfig, info: DataInfo) -> None:
        super().__init__(cfg, info)
        c, m = info.num_classes, info.num_unlabelled
        self.aux = xavier_linear(info.feat_dim, c)
        self.given = nn.Buffer(torch.tensor(info.labelled_counts))
        self.counts = nn.Buffer(torch.tensor(info.labelled_counts))
        self.chosen_counts = nn.Buffer(torch.ones(c, dtype=torch.int64))
        self.copies = nn.Buffer(torch.full((c,), cfg.copies))
        self.radii = nn.Buffer(torch.full((c,), 1 / c))
        self.votes = nn.Buffer(torch.zeros(m, c, dtype=torch.int32))
        self.chosen = nn.Buffer(torch.zeros(m, dtype=torch.bool))
        self.soft = nn.Buffer(torch.zeros(m, c))
        self.drawn = nn.Buffer(torch.tensor(0))  # unlabelled images seen since the last update
        self.noise_key = nn.Buffer(torch.randint(2**31, ()))  # the seed decides it, and so the noise
        self.updated = nn.Buffer(torch.tensor(-1))  # steps done at the last update; negative: none yet

    @classmethod
    def streams(cls, cfg: CPGConfig) -> dict[str, Stream]:
        labelled = ("weak", "strong") if cfg.labelled_strong else ("weak",)
        return {"labelled": Stream("labelled", labelled), "unlabelled": Stream("unlabelled", ("weak", "strong"))}

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        lb, ulb = batch["labelled"], batch["unlabelled"]
        unused = [lb.views["strong"]] if self.cfg.labelled_strong else []
        parts = forward_concat(net, lb.views["weak"], *unused, ulb.views["weak"], ulb.views["strong"])
        lb_w, ulb_w, ulb_s = parts[0], parts[-2], parts[-1]
        early = step.fraction < self.cfg.warm_up
        target = self.targets(lb)
        pseudo = self.one_hot(self.aux(ulb_w.feat).detach().argmax(-1))
        if early:
            sup, keep = self.adjusted(lb_w.logits, target), torch.zeros_like(ulb_w.logits[:, 0].detach())
            aux_target, pseudo = target, smooth(pseudo, self.cfg.smoothing)
        else:
            feats, targets = self.with_copies(lb_w.feat, target, step.iteration)
            sup, keep = self.adjusted(net.head(feats), targets), self.vote(ulb.index, ulb_w, ulb_s)
            aux_target = self.one_hot(target.argmax(-1))
        aux = cross_entropy(self.aux(ulb_s.feat), pseudo).mean() + self.adjusted(self.aux(lb_w.feat), aux_target)
        logs = {"selected": keep.mean(), "promoted": self.chosen.to(keep.dtype).mean()}
        return Losses({"sup": sup, "aux": aux}, logs=logs)

    def one_hot(self, labels: Tensor) -> Tensor:
        return one_hot(labels, len(self.counts), self.soft.dtype)

    def targets(self, lb: StreamBatch) -> Tensor:
        """Smoothed given labels, which come first in the labelled set, and the soft ones of promoted images."""
        is_given = (lb.index < sum(self.info.labelled_counts))[:, None]
        return torch.where(is_given, smooth(lb.targets, self.cfg.smoothing), lb.targets)

    def adjusted(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy with the log class shares of the current labelled set added to the logits."""
        return cross_entropy(logits + log_share(self.counts).to(logits), target).mean()

    def with_copies(self, feat: Tensor, target: Tensor, iteration: int) -> tuple[Tensor, Tensor]:
        """Features (B, D) and targets (B, C), followed by k_c noisy copies of each, row by row."""
        label = target.argmax(-1)
        rows = torch.arange(len(feat), device=feat.device).repeat_interleave(self.copies[label])
        generator = keyed_generator(int(self.noise_key), iteration)
        noise = torch.randn(len(rows), feat.shape[1], generator=generator).to(feat)
        copies = feat[rows] + noise * self.radii[label[rows], None] * normalize(feat[rows])
        return torch.cat([feat, copies]), torch.cat([target, target[rows]])

    @torch.no_grad()
    def vote(self, index: Tensor, weak: Outputs, strong: Outputs) -> Tensor:
        """Count the confident predictions that both views share; 1 for each image of the batch (U,) with a vote."""
        prior = log_share(self.vote_prior()).to(weak.logits)
        (confidence_w, label_w), (confidence_s, label_s) = (
            (v.logits + prior).softmax(-1).max(-1) for v in (weak, strong)
        )
        threshold = self.cfg.threshold * (1 - self.cfg.smoothing)
        keep: Tensor = (label_w == label_s) & (confidence_w >= threshold) & (confidence_s >= threshold)
        self.votes.index_put_((index, label_w), keep.to(self.votes.dtype), accumulate=True)
        self.drawn.add_(len(index))
        return keep.to(weak.logits.dtype)

    def vote_prior(self) -> Tensor:
        """d (C,): classes chosen no more often than the rarest has labels get the smallest count of the others."""
        counts, many = self.chosen_counts, self.chosen_counts > self.given.min()
        return torch.where(many, counts, counts[many].min()) if many.any() else torch.ones_like(counts)

    def after_step(self, ctx: Context) -> None:
        """Compute the radii at the end of warm-up; from then on, whenever an update is due, choose images and
        recompute."""
        done, total, last = ctx.step.iteration + 1, ctx.step.total, int(self.updated)
        if last < 0:
            due = done >= self.cfg.warm_up * total
        else:
            waited = done - last >= self.cfg.update_every * total
            due = waited and int(self.drawn) >= self.cfg.min_visits * self.info.num_unlabelled
        if not due:
            return
        if last >= 0:
            self.choose()
        parts = [(out.features, batch.targets.argmax(-1)) for batch, out in ctx.scan("labelled", weights="live")]
        self.radii.copy_(self.class_radii(*(torch.cat(part) for part in zip(*parts, strict=True))))
        self.updated.fill_(done)

    def choose(self) -> None:
        """Promote the images with enough votes, nearly all for one class, and reset the votes."""
        total, most = self.votes.sum(1), self.votes.max(1)
        share, visits = self.cfg.min_votes_fraction, self.drawn / self.info.num_unlabelled
        needed = self.cfg.min_votes if share is None else share * visits
        self.chosen.copy_((total > needed) & (most.values > self.cfg.agreement * total))
        self.soft.copy_(self.votes / total.clamp(min=1)[:, None])
        self.chosen_counts.copy_(most.indices[self.chosen].bincount(minlength=self.info.num_classes))
        self.counts.copy_(self.given + self.chosen_counts)
        usual = self.counts.sort().values[self.info.num_classes // 3]
        self.copies.copy_(self.cfg.copies * usual // self.counts.clamp(min=1))
        self.votes.zero_()
        self.drawn.zero_()

    def class_radii(self, feat: Tensor, label: Tensor) -> Tensor:
        """r (C,) from the features (n, D) and classes (n,) of the labelled set: larger for scattered classes."""
        member = self.one_hot(label).to(feat)
        size = member.sum(0)
        centres = member.T @ feat / size.clamp(min=1)[:, None]
        closeness = (cosine_similarity(feat, centres[label]) + 1) / 2
        if self.cfg.similarity == "last":
            last = {(i // CHUNK, c): i for i, c in enumerate(label.tolist())}
            skipped = torch.ones_like(label, dtype=torch.bool)
            skipped[list(last.values())] = False
            closeness = closeness.masked_fill(skipped, 0)
        spread = torch.where(size > 0, size / (member.T @ closeness), 0)
        return spread / spread.sum()

    def promoted(self) -> tuple[Tensor, Tensor] | None:
        positions = self.chosen.nonzero().squeeze(1)
        return (positions, self.soft[positions]) if len(positions) else None


def log_share(counts: Tensor) -> Tensor:
    """log n / sum n, (C,)."""
    return (counts / counts.sum()).log()
