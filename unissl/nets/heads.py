"""Networks for features in place of images: a small MLP, and a linear classifier."""

from __future__ import annotations

from torch import nn

from unissl.nets.base import Network

HIDDEN = 512
FEAT_DIM = 128


class MLPHead(Network):
    """(n, D) -> 512 -> 128, each with BatchNorm and LeakyReLU, then the classifier. It has no taps."""

    def __init__(self, in_features: int, num_classes: int, bn_momentum: float) -> None:
        layers = nn.Sequential(*_layer(in_features, HIDDEN, bn_momentum), *_layer(HIDDEN, FEAT_DIM, bn_momentum))
        super().__init__({"map": layers}, {"map": FEAT_DIM}, num_classes)
        self.tap_dims = {}

    def _initialise_stages(self) -> None:
        for module in self.stages.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")


def _layer(width_in: int, width_out: int, bn_momentum: float) -> list[nn.Module]:
    linear = nn.Linear(width_in, width_out, bias=False)
    return [linear, nn.BatchNorm1d(width_out, momentum=bn_momentum), nn.LeakyReLU(0.1)]


class LinearHead(Network):
    """(n, D) -> (n, C): a linear classifier. Its feature is its input; it has no taps."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__({"map": nn.Identity()}, {"map": in_features}, num_classes)
        self.tap_dims = {}
