"""Fine-tuning from pretrained weights: all stages at a lower learning rate, or the last stages alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from torch import nn

from unissl.errors import UserError
from unissl.nets.base import Network


class PretrainedStages(nn.ModuleDict):
    """The stages of a network with pretrained weights; the optimiser recognises them by this type.

    The first ``num_frozen`` of them stay frozen: their parameters get no gradient, and their BatchNorms use the stored
    statistics in training too.
    """

    def __init__(self, stages: Mapping[str, nn.Module], num_frozen: int) -> None:
        super().__init__(stages)
        self.num_frozen = num_frozen
        for stage in self.frozen_stages():
            stage.requires_grad_(False)
        self.train(self.training)

    def frozen_stages(self) -> list[nn.Module]:
        return list(self.values())[: self.num_frozen]

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for stage in self.frozen_stages():
            stage.eval()
        return self


def fine_tune(net: Network, unfreeze_last: int | None, name: str) -> None:
    """Mark the stages of ``net`` as pretrained; with ``unfreeze_last``, train only the last so many of them."""
    stages = dict(net.stages.items())
    trainable = [key for key, stage in stages.items() if any(True for _ in stage.parameters())]
    if unfreeze_last is not None and unfreeze_last >= len(trainable):
        raise UserError(
            f"net.unfreeze_last = {unfreeze_last} leaves no stage of {name} frozen, which has {len(trainable)}"
            f" {'stage' if len(trainable) == 1 else 'stages'} ({', '.join(trainable)}); "
            "choose a smaller number, or leave it out to train them all."
        )
    num_frozen = 0
    if unfreeze_last is not None:
        first = len(trainable) - unfreeze_last
        num_frozen = list(stages).index(trainable[first]) if unfreeze_last else len(stages)
    net.stages = PretrainedStages(stages, num_frozen)


def starts_pretrained(net: nn.Module) -> bool:
    """Whether the network is fine-tuned, hence reads images in the normalisation of pretrained ones."""
    return any(isinstance(module, PretrainedStages) for module in net.modules())
