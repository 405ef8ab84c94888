"""Plain PyTorch, training: SAGE as one would first write it.

Images in NCHW layout, eager mode, one forward pass over all views as in the published implementation, Pillow image by
image inside the loop, GRI with whole matrices, and Python loops over parameters in the optimiser and the EMA. On the
same views it computes what our path computes (``tests/unit/bench/test_bench_same_numbers.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from suite.cases import StepCase, config_of, synthetic
from suite.plain_gri import plain_contrast
from suite.plain_net import PlainNet
from suite.plain_views import plain_batch
from unissl.methods.sage import SAGEConfig
from unissl.ops.simplex import simplex_anchors
from unissl.run.config import RunConfig


@dataclass(frozen=True)
class PlainSettings:
    """The numbers of SAGE and of the protocol's optimiser."""

    classes: int
    total: int
    ridge: float
    steps: int
    bias: float
    t_sim: float
    t_graph: float
    smoothing: float
    smoothing_phase: float
    drp_momentum: float
    n_sigma: float
    lr: float
    momentum: float
    weight_decay: float
    ema: float

    @classmethod
    def of(cls, config: RunConfig, classes: int) -> PlainSettings:
        sage, optim, total = config.method, config.optim, config.train.steps
        if not isinstance(sage, SAGEConfig) or total is None:
            raise ValueError("the plain implementation needs SAGE and a number of steps")
        sage = sage.for_data(classes)
        assert sage.walk_steps is not None and sage.sim_temperature is not None and sage.graph_temperature is not None
        return cls(
            classes=classes,
            total=total,
            ridge=sage.ridge,
            steps=sage.walk_steps,
            bias=sage.self_bias,
            t_sim=sage.sim_temperature,
            t_graph=sage.graph_temperature,
            smoothing=sage.smoothing,
            smoothing_phase=sage.smoothing_phase,
            drp_momentum=sage.drp_momentum,
            n_sigma=sage.n_sigma,
            lr=optim.lr,
            momentum=optim.momentum,
            weight_decay=optim.weight_decay,
            ema=optim.ema_decay,
        )


class PlainModel(nn.Module):
    """Network, auxiliary head, projection."""

    def __init__(self, net: str, classes: int) -> None:
        super().__init__()
        self.net = PlainNet(net, classes)
        dim = self.net.feat_dim
        self.aux = nn.Linear(dim, classes)
        self.project = nn.Sequential(
            nn.Linear(dim, dim), nn.BatchNorm1d(dim, momentum=0.001, eps=0.001), nn.LeakyReLU(0.1), nn.Linear(dim, dim)
        )


class PlainTrainer:
    """Holds the model, SGD, the EMA and the running statistics of DRP; ``step`` trains on given views."""

    def __init__(self, model: PlainModel, prior: Tensor, settings: PlainSettings) -> None:
        self.model, self.settings = model, settings
        self.log_prior = prior.log()
        self.anchors = simplex_anchors(model.net.feat_dim)
        parameters = list(model.parameters())
        self.optimizer = torch.optim.SGD(
            [
                {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
                {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=settings.lr,
            momentum=settings.momentum,
            nesterov=True,
            foreach=False,
        )
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.running = {"confidence": (1 / settings.classes, 1.0), "margin": (1 / settings.classes, 1.0)}

    def step(self, iteration: int, target: Tensor, lb_w: Tensor, ulb_w: Tensor, ulb_s: Tensor) -> dict[str, float]:
        """One step on normalised views; ``target`` is one-hot (B, C). Returns the loss terms as numbers."""
        settings = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr * math.cos(7 * math.pi * iteration / (16 * settings.total))
        terms, left_out = self.losses(iteration / settings.total, target, lb_w, ulb_w, ulb_s)
        total = sum(terms.values(), start=torch.zeros(()))
        self.optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                self.shadow[name] = settings.ema * self.shadow[name] + (1 - settings.ema) * parameter
        values = {name: term.item() for name, term in terms.items()}
        return {**values, "left_out": left_out.item()}

    def losses(
        self, fraction: float, target: Tensor, lb_w: Tensor, ulb_w: Tensor, ulb_s: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        settings, sizes = self.settings, [len(lb_w), len(ulb_w), len(ulb_s)]
        logits, feat = self.model.net(torch.cat([lb_w, ulb_w, ulb_s]))
        logits_lb, logits_w, _ = logits.split(sizes)
        feat_lb, feat_w, feat_s = feat.split(sizes)
        _, z_w, z_s = self.model.project(feat).split(sizes)

        probs = logits_w.detach().softmax(1)
        top = probs.topk(2, dim=1).values
        weight = self.trust("confidence", top[:, 0]) * self.trust("margin", top[:, 0] - top[:, 1])
        pseudo = functional.one_hot(probs.argmax(1), settings.classes).to(target.dtype)
        eps = settings.smoothing if fraction < settings.smoothing_phase else 0.0
        aux_lb, aux_s = self.model.aux(feat_lb), self.model.aux(feat_s)
        con, left_out = plain_contrast(
            functional.normalize(z_w),
            functional.normalize(z_s),
            self.anchors,
            settings.ridge,
            settings.steps,
            settings.bias,
            settings.t_sim,
            settings.t_graph,
        )
        terms = {
            "sup": _entropy(logits_lb + self.log_prior, _smooth(target, settings.smoothing)).mean(),
            "aux": (weight * _entropy(aux_s, _smooth(pseudo, eps))).mean()
            + _entropy(aux_lb + self.log_prior, _smooth(target, eps)).mean(),
            "con": con,
            "sim": -(
                functional.cosine_similarity(z_w, feat_s.detach()) + functional.cosine_similarity(z_s, feat_w.detach())
            ).mean(),
        }
        return terms, left_out

    def trust(self, name: str, values: Tensor) -> Tensor:
        """DRP: a Gaussian below the running mean, 1 above."""
        keep, (mean, var) = self.settings.drp_momentum, self.running[name]
        mean = keep * mean + (1 - keep) * values.mean().item()
        var = keep * var + (1 - keep) * values.var().item()
        self.running[name] = (mean, var)
        return torch.exp(-(self.settings.n_sigma**2) * (values - mean).clamp(max=0) ** 2 / (2 * var))


def _smooth(target: Tensor, eps: float) -> Tensor:
    return target * (1 - eps) + (1 - target) * eps / (target.shape[1] - 1)


def _entropy(logits: Tensor, target: Tensor) -> Tensor:
    return -(target * logits.log_softmax(1)).sum(1)


@dataclass(frozen=True)
class PlainStep:
    """A turn is one step of the plain implementation, its views included."""

    case: StepCase

    def run(self, turn: Callable[..., None]) -> None:
        dataset, split = synthetic(self.case)
        config = config_of(self.case, dataset)
        classes = self.case.classes
        prior = torch.tensor(split.labelled_counts) / len(split.labels)
        trainer = PlainTrainer(PlainModel(self.case.net, classes), prior, PlainSettings.of(config, classes))
        images, random = dataset.train.images, Random(0)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (dataset.mean, dataset.std))
        iteration = trainer.settings.total // 2
        turn()
        while True:
            chosen = np.array(random.choices(range(len(split.labelled)), k=self.case.labelled))
            pool = np.array(random.choices(range(len(split.unlabelled)), k=self.case.unlabelled))
            target = functional.one_hot(torch.from_numpy(split.labels[chosen]), classes).to(mean.dtype)
            lb_w = plain_batch("weak", images[split.labelled[chosen]], mean, std, random)
            unlabelled = images[split.unlabelled[pool]]
            ulb_w, ulb_s = (plain_batch(view, unlabelled, mean, std, random) for view in ("weak", "strong"))
            trainer.step(iteration, target, lb_w, ulb_w, ulb_s)
            iteration += 1
            turn()
