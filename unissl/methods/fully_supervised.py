"""Fully supervised: cross-entropy with the true labels of the pool, the upper bound for every method.

The labels of the pool join the given ones before training starts, so the same optimiser, schedule, EMA and number of
steps see as many labelled images a step as any other method. The difference to a semi-supervised method is the cost of
the missing labels.

There is no paper and no official code; the comparison of SAGE reports this upper bound as supervised learning.

| symbol | name here | where |
|---|---|---|
| H(y, l(x_w)) | ``sup`` | cross-entropy of the weak view, over labelled images and pool alike |

Deviations: none. The loss is that of labels-only; the split differs, by ``needs``.
"""

from __future__ import annotations

from typing import Any, Literal

from unissl.methods.base import Method, MethodConfig, Needs, Network
from unissl.ops.losses import cross_entropy
from unissl.types import Batch, Losses, Step, Stream


class FullySupervisedConfig(MethodConfig):
    name: Literal["fully-supervised"] = "fully-supervised"


class FullySupervised(Method):
    Config = FullySupervisedConfig
    title, venue, family = "Fully supervised", "-", "supervised"
    idea = "upper bound: the true labels of the unlabelled images are given"
    link = "-"
    needs = frozenset({Needs.POOL_LABELS})

    @classmethod
    def streams(cls, cfg: Any) -> dict[str, Stream]:
        return {"labelled": Stream("labelled", ("weak",))}

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        lb = batch["labelled"]
        return Losses({"sup": cross_entropy(net(lb.views["weak"]).logits, lb.targets).mean()})
