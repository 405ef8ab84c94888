"""A network that is a linear classifier and nothing else, for vectors that somebody else makes."""

from __future__ import annotations

from torch import Tensor, nn

from unissl.nets.base import Network
from unissl.types import Outputs


class LinearHead(Network):
    """(n, D) -> (n, C). Its feature is the vector itself; it has no inner maps."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__({"map": nn.Identity()}, {"map": in_features}, num_classes)
        self.tap_dims = {}

    def forward(self, x: Tensor) -> Outputs:
        return Outputs(self.head(x), x)
