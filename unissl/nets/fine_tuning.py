"""Training that starts from pretrained weights: all of them, at a lower rate, or those of the last stages alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from torch import nn

from unissl.errors import UserError
from unissl.nets.base import Network


class PretrainedStages(nn.ModuleDict):
    """The stages of a network that start from pretrained weights; the optimiser knows them by this type.

    The first ``still`` of them never move: no gradient for their parameters, and their BatchNorms use the statistics
    they came with, also while the others train.
    """

    def __init__(self, stages: Mapping[str, nn.Module], still: int) -> None:
        super().__init__(stages)
        self.still = still
        for stage in self.still_stages():
            stage.requires_grad_(False)
        self.train(self.training)

    def still_stages(self) -> list[nn.Module]:
        return list(self.values())[: self.still]

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for stage in self.still_stages():
            stage.eval()
        return self


def fine_tune(net: Network, blocks: int | None, name: str) -> None:
    """Mark the stages of ``net`` as pretrained and, where ``blocks`` is given, train only the last so many of them."""
    stages = dict(net.stages.items())
    parts = [key for key, stage in stages.items() if any(True for _ in stage.parameters())]
    if blocks is not None and blocks >= len(parts):
        raise UserError(
            f"net.unfreeze_last = {blocks} leaves nothing of {name} still, which has {len(parts)}"
            f" {'part' if len(parts) == 1 else 'parts'} ({', '.join(parts)}); "
            "choose a smaller number, or leave it out to train them all."
        )
    still = 0 if blocks is None else list(stages).index(parts[len(parts) - blocks]) if blocks else len(stages)
    net.stages = PretrainedStages(stages, still)


def starts_pretrained(net: nn.Module) -> bool:
    """Whether the network reads images in the normalisation of the pretrained ones."""
    return any(isinstance(part, PretrainedStages) for part in net.modules())
