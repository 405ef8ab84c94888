"""The shipped model: weights of the inference module alone, and a manifest that says how to feed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from unissl.augment import AugmentConfig
from unissl.augment.image_views import ImageViews
from unissl.config import check
from unissl.errors import UserError
from unissl.evaluation.predictions import Predictions, predict_rows
from unissl.features.extract import BATCH, FrozenBackbone, WithBackbone
from unissl.inference.manifest import require_manifest
from unissl.inference.review import ReviewThresholds
from unissl.methods.base import attach_method
from unissl.methods.registry import get_method
from unissl.nets import Network, build, channels_last
from unissl.nets.alloc_guard import AllocationGuard
from unissl.nets.external import refuse_strange_code
from unissl.nets.heads import MLPHead
from unissl.nets.linear_net import LinearHead
from unissl.run_folder import RunFolder, read_json, write_json, write_tensors
from unissl.types import DataInfo, Outputs, Prediction

FORMAT = "unissl-model-1"
POOL_IS_GONE = 1
"""Methods that remember something of every unlabelled image need not do so any more."""


@dataclass(frozen=True)
class Model:
    """A trained classifier, ready for images of the size and channels it was trained on."""

    module: nn.Module
    class_names: tuple[str, ...]
    size: tuple[int, int]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    batch: int = 256
    """Images that are taken at once, unless the caller says otherwise."""
    doubt: ReviewThresholds = field(default_factory=ReviewThresholds)
    """Which predictions a person should look at."""
    crop: int | None = None
    """Side of the square in the centre of an image that the network is shown, if not all of it."""

    def predict(self, images: Any, batch_size: int | None = None) -> Predictions:
        """Class probabilities and outlier scores of uint8 images (n, h, w, channels)."""
        views = self.views(images)
        return predict_rows(self.module, views, batch_size=batch_size or self.batch)

    def views(self, images: Any) -> ImageViews:
        """Images (n, h, w, channels) as the network takes them."""
        return ImageViews(images, AugmentConfig(crop=self.crop), self.mean, self.std, torch.device("cpu"))


class TemperatureScaled(nn.Module):
    """A module whose logits are divided by a temperature, so that its probabilities are calibrated. Its outlier score
    is that of the module itself (see :meth:`unissl.evaluation.predictions.Predictions.at_temperature`)."""

    def __init__(self, module: nn.Module, temperature: float) -> None:
        super().__init__()
        self.module = module
        self.temperature = temperature

    def forward(self, x: Tensor) -> Prediction:
        said: Outputs | Prediction = self.module(x)
        features = said.feat if isinstance(said, Outputs) else said.features
        return Prediction(said.logits / self.temperature, features, outlier_score(said))


def outlier_score(said: Outputs | Prediction) -> Tensor:
    """That of the detector (n,), or one minus the confidence."""
    if isinstance(said, Prediction) and said.outlier is not None:
        return said.outlier
    return 1 - said.logits.softmax(-1).amax(-1)


def save_model(folder: RunFolder, weights: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> None:
    write_tensors(folder.model, weights)
    write_json(folder.manifest, {"format": FORMAT, **manifest})


def build_from_manifest(manifest: Mapping[str, Any]) -> nn.Module:
    """The inference module that a manifest describes, with weights yet to be loaded.

    The manifest may be anybody's: what it asks for is bounded, and code that it names is not run without a word.
    """
    refuse_strange_code(manifest["net"])
    with AllocationGuard():
        return _rebuild(manifest)


def _rebuild(manifest: Mapping[str, Any]) -> nn.Module:
    num_classes, channels = len(manifest["class_names"]), manifest["channels"]
    method_class = get_method(manifest["method"]["name"])
    config = check(method_class.Config, manifest["method"], where="method")
    if is_frozen(manifest):
        front = FrozenBackbone.empty(manifest["net"], channels, manifest.get("backbone_config"))
        if manifest.get("distilled", False):
            return WithBackbone(front, LinearHead(front.net.feat_dim, num_classes))
        net: Network = MLPHead(front.net.feat_dim, num_classes, bn_momentum=0.1)
        shape: tuple[int, ...] = (front.net.feat_dim,)
    else:
        front = None
        net = build(manifest["net"], num_classes, channels, recipe=manifest.get("backbone_config"))
        shape = (channels, *(manifest.get("crop", manifest[name]) for name in ("height", "width")))
    if set(method_class.taps) - set(net.tap_dims):
        raise UserError(f"The network {manifest['net']} lacks inner maps that {config.name} reads; train again.")
    attach_method(net, method_class)
    counts = tuple(manifest["labelled_counts"])
    tap_dims = {name: net.tap_dims[name] for name in method_class.taps}
    info = DataInfo(num_classes, net.feat_dim, POOL_IS_GONE, counts, tap_dims, shape)
    module = method_class(config, info).inference_module(net)
    return module if front is None else WithBackbone(front, module)


def is_frozen(manifest: Mapping[str, Any]) -> bool:
    """Whether the network was trained on the vectors of a frozen one, which then stands before it."""
    return bool(manifest.get("frozen", False))


def read_manifest(folder: RunFolder) -> Mapping[str, Any]:
    """What a run folder says about its model."""
    manifest = read_json(folder.manifest)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{folder.manifest} is not a manifest of this version; train again.")
    return require_manifest(manifest, folder.manifest)


def load_weights(module: nn.Module, folder: RunFolder) -> None:
    """Give a module the weights of a run; refuses any but finite numbers in the very shapes that it has."""
    damaged = UserError(f"{folder.model} is damaged or does not fit its manifest; train again.")
    wanted = module.state_dict()
    try:
        weights = load_file(folder.model)
    except (SafetensorError, OSError, ValueError):
        raise damaged from None
    if {name: value.shape for name, value in weights.items()} != {name: value.shape for name, value in wanted.items()}:
        raise damaged
    for name, value in weights.items():
        if value.is_floating_point() != wanted[name].is_floating_point() or value.is_complex():
            raise damaged
        weights[name] = value.to(wanted[name].dtype)
        if not weights[name].isfinite().all():
            raise damaged
    module.load_state_dict(weights, strict=True)


def load_model(folder: RunFolder) -> Model:
    """The model of a finished run."""
    if not folder.model.exists():
        raise UserError(f"{folder.path} holds no trained model; give the folder of a finished run.")
    manifest = read_manifest(folder)
    module = build_from_manifest(manifest)
    load_weights(module, folder)
    temperature = manifest.get("temperature", 1.0)
    if temperature != 1.0:
        module = TemperatureScaled(module, temperature)
    return Model(
        channels_last(module.eval()),
        tuple(manifest["class_names"]),
        (manifest["height"], manifest["width"]),
        manifest["channels"],
        tuple(manifest["mean"]),
        tuple(manifest["std"]),
        BATCH if is_frozen(manifest) else Model.batch,
        ReviewThresholds.from_manifest(manifest),
        manifest.get("crop"),
    )
