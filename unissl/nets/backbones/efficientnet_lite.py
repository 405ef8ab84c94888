"""EfficientNet-Lite (Tan and Le, 2019, https://arxiv.org/abs/1905.11946, in the form for small devices that its authors
published in 2020): EfficientNet without squeeze-and-excitation, with ReLU6, and with a stem and a head of fixed width.

Seven stages of inverted residual blocks: widen 6 times, filter each channel, narrow. Width and depth are scaled
together, widths to multiples of 8; the first and the last stage keep their single block. Padding is TensorFlow's,
since the published weights were trained with it: where a stride halves an even side, the odd zero goes right and below.

Left out, since a network here draws no random numbers: dropout before the classifier and dropped blocks in training.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.fusion import fuse_conv_bn_eval

from unissl.nets.base import Network

STEM_WIDTH = 32
MAP_WIDTH = 1280
BN_EPS = 1e-3


@dataclass(frozen=True)
class Scale:
    """Factors on the widths and the numbers of blocks."""

    width: float
    depth: float


SCALES = {
    "efficientnet-lite0": Scale(1.0, 1.0),
    "efficientnet-lite1": Scale(1.0, 1.1),
    "efficientnet-lite2": Scale(1.1, 1.2),
}

STAGES = (
    # kernel, stride, expansion, width, blocks
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
"""The stages at scale 1."""


class PadRightAndBelow(nn.Module):
    """Zeros for a strided window as TensorFlow's "same" adds them: just enough, and the odd one right and below."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        return pad(x, (*self._around(x.size(-1)), *self._around(x.size(-2))))

    def _around(self, length: int) -> tuple[int, int]:
        total = max(self.kernel - (length % self.stride or self.stride), 0)
        return total // 2, total - total // 2


def _conv_norm(
    width_in: int, width_out: int, bn_momentum: float, kernel: int = 1, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    padding = [PadRightAndBelow(kernel, stride)] if stride > 1 else []
    conv = nn.Conv2d(width_in, width_out, kernel, stride, 0 if padding else kernel // 2, groups=groups, bias=False)
    return [*padding, conv, nn.BatchNorm2d(width_out, eps=BN_EPS, momentum=bn_momentum)]


class InvertedResidual(nn.Module):
    """Widen (1x1), filter each channel, narrow (1x1, no activation); added to the input where the shapes agree."""

    def __init__(
        self, width_in: int, width_out: int, kernel: int, stride: int, expansion: int, bn_momentum: float
    ) -> None:
        super().__init__()
        inner = width_in * expansion
        widen = [*_conv_norm(width_in, inner, bn_momentum), nn.ReLU6()] if expansion > 1 else []
        self.branch = nn.Sequential(
            *widen,
            *_conv_norm(inner, inner, bn_momentum, kernel, stride, groups=inner),
            nn.ReLU6(),
            *_conv_norm(inner, width_out, bn_momentum),
        )
        self.residual = stride == 1 and width_in == width_out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.branch(x)
        return x + out if self.residual else out


def _scaled_width(width: int, factor: float) -> int:
    """The nearest multiple of 8, or the next one where that would take off more than a tenth."""
    nearest = max(8, int(width * factor + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * width * factor else nearest + 8


class EfficientNetLite(Network):
    """EfficientNet-Lite by its name in :data:`SCALES`; the feature is the 1280 channels of the map, pooled."""

    def __init__(self, name: str, num_classes: int, in_channels: int, bn_momentum: float) -> None:
        scale = SCALES[name]
        stem = [*_conv_norm(in_channels, STEM_WIDTH, bn_momentum, kernel=3, stride=2), nn.ReLU6()]
        stages: dict[str, nn.Module] = {"stem": nn.Sequential(*stem)}
        tap_dims = {"stem": STEM_WIDTH}
        width = STEM_WIDTH
        for number, (kernel, stride, expansion, base_width, base_blocks) in enumerate(STAGES, start=1):
            width_out = _scaled_width(base_width, scale.width)
            fixed = number in (1, len(STAGES))
            blocks = nn.Sequential()
            for i in range(base_blocks if fixed else math.ceil(base_blocks * scale.depth)):
                step = stride if i == 0 else 1
                blocks.append(InvertedResidual(width, width_out, kernel, step, expansion, bn_momentum))
                width = width_out
            stages[f"stage{number}"], tap_dims[f"stage{number}"] = blocks, width
        stages["map"], tap_dims["map"] = (
            nn.Sequential(*_conv_norm(width, MAP_WIDTH, bn_momentum), nn.ReLU6()),
            MAP_WIDTH,
        )
        super().__init__(stages, tap_dims, num_classes)

    def _initialise(self) -> None:
        """As everywhere, but a filter of one channel counts only its own positions as its fan-out."""
        super()._initialise()
        for module in self.stages.modules():
            if isinstance(module, nn.Conv2d) and module.groups > 1:
                nn.init.normal_(module.weight, std=math.sqrt(2 / module.weight[0].numel()))


def fold_batch_norm(net: EfficientNetLite) -> EfficientNetLite:
    """A copy for inference alone: every BatchNorm is taken into the convolution before it, with equal outputs."""
    folded = copy.deepcopy(net).eval()
    for part in folded.modules():
        if isinstance(part, nn.ReLU6):
            part.inplace = True  # nobody else reads what it overwrites
        if not isinstance(part, nn.Sequential):
            continue
        for i in range(1, len(part)):
            conv, norm = part[i - 1], part[i]
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                part[i - 1], part[i] = fuse_conv_bn_eval(conv, norm), nn.Identity()
    return folded
