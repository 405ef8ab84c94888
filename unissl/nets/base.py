"""The base class of all networks: a chain of named stages, global average pooling, one linear classifier.

Methods use a network only through :class:`unissl.types.Outputs`; further heads belong to the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from unissl.types import Outputs

try:
    from unissl_kernels import Conv3x3, apply_norm_act_conv
except ModuleNotFoundError:  # an installation without the kernels

    class Conv3x3(nn.Conv2d):  # type: ignore[no-redef]
        """A 3 x 3 convolution with stride 1, zero padding 1 and no bias."""

        def __init__(self, width_in: int, width_out: int) -> None:
            super().__init__(width_in, width_out, 3, padding=1, bias=False)

    def apply_norm_act_conv(
        norm: nn.BatchNorm2d, activation: nn.LeakyReLU | nn.ReLU, conv: nn.Conv2d, x: Tensor
    ) -> Tensor:
        """``conv(activation(norm(x)))``."""
        y: Tensor = conv(activation(norm(x)))
        return y


if TYPE_CHECKING:
    from unissl.nets.backbones.base import Backbone

__all__ = ["Network", "apply_norm_act_conv", "conv1x1", "conv3x3"]


class Network(nn.Module):
    """Stages run in order; the output of each can be tapped by its name, and the last one is called ``"map"``.

    ``tap_dims`` gives the channels of every tap. The map is averaged over its positions, if it has any, to the feature
    (n, D), from which ``head`` computes the logits (n, C).
    """

    __call__: Callable[..., Outputs]

    def __init__(self, stages: Mapping[str, nn.Module], tap_dims: Mapping[str, int], num_classes: int) -> None:
        super().__init__()
        if list(stages) != list(tap_dims) or list(stages)[-1] != "map":
            raise ValueError("every stage needs its channel count, and the last stage is called 'map'")
        self.num_classes = num_classes
        self.tap_dims = dict(tap_dims)
        self.feat_dim = self.tap_dims["map"]
        self.stages = nn.ModuleDict(dict(stages))
        self.head = nn.Linear(self.feat_dim, num_classes)
        self.backbone: Backbone | None = None
        """The declaration of a pretrained backbone, where the network is one."""
        self._wanted_taps: tuple[str, ...] = ()
        self._initialise()

    @property
    def wanted_taps(self) -> tuple[str, ...]:
        """The inner maps to return in ``Outputs.taps``; none by default, since each one costs memory."""
        return self._wanted_taps

    @wanted_taps.setter
    def wanted_taps(self, names: tuple[str, ...]) -> None:
        unknown = [name for name in names if name not in self.tap_dims]
        if unknown:
            raise ValueError(f"no tap {unknown[0]!r}; this network has {', '.join(self.tap_dims)}")
        self._wanted_taps = tuple(names)

    def forward(self, x: Tensor) -> Outputs:
        taps: dict[str, Tensor] = {}
        for name, stage in self.stages.items():
            x = stage(x)
            if name in self._wanted_taps:
                taps[name] = x
        feat = x.mean(dim=(2, 3)) if x.ndim == 4 else x  # (n, D)
        return Outputs(self.head(feat), feat, taps)

    def features(self, x: Tensor) -> Tensor:
        """The pooled feature (n, D) alone."""
        return self(x).feat

    def untrained_parameters(self) -> frozenset[str]:
        """Names of parameters that can never get a gradient; whoever counts gradients must leave them out."""
        return frozenset()

    def _initialise(self) -> None:
        """Convolutions Kaiming normal (fan_out, gain sqrt 2), head Xavier normal with bias 0; BatchNorm starts at 1, 0.

        The gain ignores the slope of leaky activations, and convolution biases keep PyTorch's default: both follow
        the protocol of the published results.
        """
        self._initialise_stages()
        nn.init.xavier_normal_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def _initialise_stages(self) -> None:
        for module in self.stages.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def conv3x3(width_in: int, width_out: int, stride: int = 1, *, bias: bool = False) -> nn.Conv2d:
    if stride == 1 and not bias:
        return Conv3x3(width_in, width_out)
    return nn.Conv2d(width_in, width_out, 3, stride, padding=1, bias=bias)


def conv1x1(width_in: int, width_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(width_in, width_out, 1, stride, bias=False)
