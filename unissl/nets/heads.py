"""Networks for features in place of images: a small MLP, and a linear classifier."""

from __future__ import annotations

from torch import Tensor, nn

from unissl.nets.base import Network
from unissl.types import Outputs

HIDDEN = 512
FEAT_DIM = 128


class MLPHead(Network):
    """(n, D) -> 512 -> 128, each with BatchNorm and LeakyReLU, then the classifier. It has no taps."""

    def __init__(self, in_features: int, num_classes: int, bn_momentum: float) -> None:
        layers = nn.Sequential(*_layer(in_features, HIDDEN, bn_momentum), *_layer(HIDDEN, FEAT_DIM, bn_momentum))
        super().__init__({"map": layers}, {"map": FEAT_DIM}, num_classes)
        self.tap_dims = {}

    def forward(self, x: Tensor) -> Outputs:
        feat = self.stages["map"](x)
        return Outputs(self.head(feat), feat)

    def _initialise(self) -> None:
        """Kaiming normal for the layers, which have no bias; the classifier as in the base class."""
        for module in self.stages.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.xavier_normal_(self.head.weight)
        nn.init.zeros_(self.head.bias)


def _layer(width_in: int, width_out: int, bn_momentum: float) -> list[nn.Module]:
    linear = nn.Linear(width_in, width_out, bias=False)
    return [linear, nn.BatchNorm1d(width_out, momentum=bn_momentum), nn.LeakyReLU(0.1)]


class LinearHead(Network):
    """(n, D) -> (n, C): a linear classifier. Its feature is its input; it has no taps."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__({"map": nn.Identity()}, {"map": in_features}, num_classes)
        self.tap_dims = {}

    def forward(self, x: Tensor) -> Outputs:
        return Outputs(self.head(x), x)
