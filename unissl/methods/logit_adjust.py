"""Logit adjustment: cross-entropy with the true labels of the pool, corrected for how frequent each class is.

The logits are trained with tau log pi added to them, pi being the class shares of the training set, and used without
it. A class thus need not be frequent to be predicted, and the raw logits suit a test set in which classes are even.
Like ``fully-supervised`` it learns from the pool's true labels, and is an upper bound for pools with a long tail.

Paper: Menon et al., "Long-tail learning via logit adjustment", ICLR 2021, https://arxiv.org/abs/2007.07314. Official
code: https://github.com/google-research/google-research/tree/master/logit_adjustment.

| symbol | name here | where |
|---|---|---|
| pi | ``log_prior`` | class shares of the labelled set, which holds the pool |
| H(y, l(x_w) + tau log pi) | ``sup``, ``tau`` | logit-adjusted cross-entropy of the weak view |
| argmax l(x) | ``Method.predict`` | raw logits |

Deviations: tau is that of the comparison, 2.5 up to ten classes and 1.5 beyond; the paper's usual value is 1.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field
from torch import nn

from unissl.methods.base import Method, MethodConfig, Needs, Network
from unissl.ops.losses import cross_entropy
from unissl.types import Batch, DataInfo, Losses, Step, Stream

FEW_CLASSES = 10


class LogitAdjustConfig(MethodConfig):
    name: Literal["logit-adjust"] = "logit-adjust"
    tau: float | None = Field(default=None, ge=0)
    """Strength of the adjustment; by default 2.5 up to ten classes and 1.5 beyond."""

    def for_data(self, num_classes: int) -> Self:
        if self.tau is not None:
            return self
        return self.model_copy(update={"tau": 2.5 if num_classes <= FEW_CLASSES else 1.5})


class LogitAdjust(Method):
    Config = LogitAdjustConfig
    title, venue, family = "Logit adjustment", "ICLR 2021", "supervised"
    idea = "the same upper bound with logits adjusted by the class distribution"
    link = "https://arxiv.org/abs/2007.07314"
    needs = frozenset({Needs.POOL_LABELS})

    def __init__(self, cfg: LogitAdjustConfig, info: DataInfo) -> None:
        super().__init__(cfg.for_data(info.num_classes), info)
        self.log_prior = nn.Buffer(info.log_prior())

    @classmethod
    def streams(cls, cfg: Any) -> dict[str, Stream]:
        return {"labelled": Stream("labelled", ("weak",))}

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        lb = batch["labelled"]
        logits = net(lb.views["weak"]).logits + self.cfg.tau * self.log_prior
        return Losses({"sup": cross_entropy(logits, lb.targets).mean()})
