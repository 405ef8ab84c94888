"""Labels only: cross-entropy on the given labels, the pool ignored: the labels-only baseline.

It runs the same optimiser, schedule, EMA and number of steps as the others, so that the difference to a
semi-supervised method is the gain from the unlabelled images.

| symbol | name here | where |
|---|---|---|
| H(y, l(x_w)) | ``sup`` | cross-entropy of the weak view |
"""

from __future__ import annotations

from typing import Any, Literal

from unissl.methods.base import Method, MethodConfig, Network
from unissl.ops.losses import cross_entropy
from unissl.types import Batch, Losses, Step, Stream


class LabelsOnlyConfig(MethodConfig):
    name: Literal["labels-only"] = "labels-only"


class LabelsOnly(Method):
    Config = LabelsOnlyConfig
    title, venue, family = "Labels only", "-", "supervised"
    idea = "lower bound: labelled images only"
    link = "-"

    @classmethod
    def streams(cls, cfg: Any) -> dict[str, Stream]:
        return {"labelled": Stream("labelled", ("weak",))}

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        lb = batch["labelled"]
        return Losses({"sup": cross_entropy(net(lb.views["weak"]).logits, lb.targets).mean()})
