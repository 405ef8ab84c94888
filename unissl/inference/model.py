"""The trained model: weights of the inference module, and the manifest that describes it.

A run predicts its own images before this model exists: in ``run/setup.py`` (``predict_with_ema``),
``run/distillation.py`` and ``run/shipping.py``. A change of how images are predicted belongs there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from unissl.augment import AugmentConfig
from unissl.augment.image_views import ImageViews
from unissl.config import check
from unissl.errors import UserError
from unissl.evaluation.calibrators import IDENTITY, Calibrator
from unissl.evaluation.predictions import Predictions, features_of, outlier_scores_of, predict_rows
from unissl.features import BATCH, FrozenBackbone, WithBackbone
from unissl.inference.image_source import DecodedChunk, ImageSource, open_images
from unissl.inference.manifest import Manifest, read_manifest
from unissl.inference.prediction_table import NOT_READ, RECORD, PredictionTable, Records, to_arrow, to_records
from unissl.methods.base import attach_method
from unissl.methods.registry import get_method
from unissl.nets import Network, build, channels_last
from unissl.nets.alloc_guard import AllocationGuard
from unissl.nets.external import check_trusted_code
from unissl.nets.heads import LinearHead, MLPHead
from unissl.run_folder import RunFolder
from unissl.types import DataInfo, Floats, Outputs, Pixels, Prediction
from unissl.utils.allocator import keep_freed_memory
from unissl.utils.atomic import write_json, write_tensors
from unissl.utils.bounded_io import regular_path
from unissl.utils.daemon_pool import DaemonPool
from unissl.utils.file_names import writable

NO_POOL = 1
"""Size of per-image state of methods that keep some for every image of the pool; inference needs none."""
BATCH_SIZE = 256
CHUNK = 256
"""Images that are decoded and predicted together: memory holds two chunks, and a kill costs at most one. Chunks start
at fixed positions, so a restart puts the same images through the network together, and its predictions are equal to the
last bit."""


@dataclass(frozen=True, repr=False)
class Model:
    """A trained classifier.

    ``images`` is a path, a folder, a PIL image, a uint8 or float array (H, W, C) or (n, H, W, C), a torch tensor, or a
    list of these, of any size: each is cropped and resized like an image file. Images are decoded and predicted in
    chunks, so any number of files fits in memory.
    """

    module: nn.Module
    manifest: Manifest

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.manifest.class_names)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images that the model takes."""
        return self.manifest.height, self.manifest.width

    @property
    def channels(self) -> int:
        return self.manifest.channels

    @property
    def batch_size(self) -> int:
        """Default number of images in a forward pass."""
        return BATCH if self.manifest.frozen else BATCH_SIZE

    def __repr__(self) -> str:
        shape = " x ".join(str(side) for side in self.manifest.image_shape)
        return f"Model({self.manifest.net}, {self.manifest.method['name']}, {len(self.class_names)} classes, {shape})"

    def predict(self, images: Any, *, batch_size: int | None = None) -> PredictionTable:
        """Class, confidence, margin, outlier score and review flag of each image; a file that cannot be read has
        ``review`` "unreadable" and no class."""
        source = open_images(images)
        records = np.concatenate([records for records, _ in predict_chunks(self, source, batch_size=batch_size)])
        if source.files is None:
            return PredictionTable(to_arrow(records, self.class_names, row=range(len(source))))
        return PredictionTable(to_arrow(records, self.class_names, file=[writable(file) for file in source.files]))

    def predict_proba(self, images: Any, *, batch_size: int | None = None) -> Floats:
        """Class probabilities (n, C); NaN for a file that cannot be read."""
        return self._rows(images, lambda pixels: self.predict_pixels(pixels, batch_size).probs)

    def embed(self, images: Any, *, batch_size: int | None = None) -> Floats:
        """Features before the classifier (n, D); NaN for a file that cannot be read."""
        return self._rows(images, lambda pixels: self._features(pixels, batch_size or self.batch_size))

    def _rows(self, images: Any, compute: Callable[[Pixels], Floats]) -> Floats:
        """``compute`` of the images, one row each (n, ...), NaN where there is none."""
        source, shape = open_images(images), self.manifest.image_shape
        rows = None
        for start, _, chunk in decode_chunks(source, shape):
            if chunk.positions:
                values = compute(chunk.pixels)
                rows = np.full((len(source), values.shape[1]), np.nan, np.float32) if rows is None else rows
                rows[start + np.array(chunk.positions)] = values
        if rows is None:
            return np.full((len(source), compute(np.zeros((1, *shape), np.uint8)).shape[1]), np.nan, np.float32)
        return rows

    def predict_pixels(self, images: Any, batch_size: int | None = None) -> Predictions:
        """Probabilities and outlier scores of uint8 images (n, h, w, channels) that have the size of the model."""
        return predict_rows(self.module, self.views(images), batch_size=batch_size or self.batch_size)

    @torch.no_grad()
    def _features(self, images: Pixels, batch_size: int) -> Floats:
        views, rows = self.views(images), np.arange(len(images))
        batches = (rows[start : start + batch_size] for start in range(0, len(rows), batch_size))
        features = [features_of(self.module(views("none", batch))) for batch in batches]
        return np.asarray(torch.cat(features).to(torch.float32).numpy())

    def views(self, images: Any) -> ImageViews:
        """Normalised and cropped views of uint8 images (n, h, w, channels) for the network."""
        manifest = self.manifest
        return ImageViews(images, AugmentConfig(crop=manifest.crop), manifest.mean, manifest.std, torch.device("cpu"))

    def __reduce__(self) -> tuple[Callable[..., Model], tuple[Any, ...]]:
        """Pickled as plain values and arrays, which any version of torch can load."""
        module = self.module.module if isinstance(self.module, Calibrated) else self.module
        weights = {name: value.cpu().numpy() for name, value in module.state_dict().items()}
        return _from_values, (_plain(self.manifest), weights)

    @property
    def backbone(self) -> FrozenBackbone | None:
        """The backbone whose features the network was trained on, if there is one."""
        return next((part.front for part in self.module.modules() if isinstance(part, WithBackbone)), None)


def decode_chunks(
    source: ImageSource, shape: tuple[int, int, int], done: int = 0
) -> Iterator[tuple[int, int, DecodedChunk]]:
    """First position, number of images and decoded images of each chunk after the first ``done`` images."""
    if done % CHUNK and done != len(source):
        raise ValueError("predictions resume at the start of a chunk")
    with keep_freed_memory(), DaemonPool(1) as background:
        ahead = background.submit(source.decode, done, done + CHUNK, shape)
        for start in range(done, len(source), CHUNK):
            chunk, after = ahead.result(), start + CHUNK
            ahead = background.submit(source.decode, after, after + CHUNK, shape)
            yield start, min(CHUNK, len(source) - start), chunk


def predict_chunks(
    model: Model, source: ImageSource, done: int = 0, batch_size: int | None = None
) -> Iterator[tuple[Records, dict[int, str]]]:
    """Records of the images after the first ``done``, chunk by chunk; with the reasons, by position in the chunk, why
    images could not be read."""
    for _, count, chunk in decode_chunks(source, model.manifest.image_shape, done):
        yield predict_chunk(model, chunk, count, batch_size), chunk.reasons


def predict_chunk(model: Model, chunk: DecodedChunk, count: int, batch_size: int | None = None) -> Records:
    """Records of the ``count`` images of a chunk."""
    records = np.zeros(count, dtype=RECORD)
    records["state"] = NOT_READ
    if chunk.positions:
        predictions = model.predict_pixels(chunk.pixels, batch_size)
        records[chunk.positions] = to_records(predictions, model.manifest.review_thresholds)
    return records


class Calibrated(nn.Module):
    """A module with calibrated logits. Its outlier score stays that of the module (see
    :meth:`unissl.evaluation.predictions.Predictions.calibrated`)."""

    def __init__(self, module: nn.Module, calibrator: Calibrator) -> None:
        super().__init__()
        self.module = module
        self.calibrator = calibrator

    def forward(self, x: Tensor) -> Prediction:
        outputs: Outputs | Prediction = self.module(x)
        return Prediction(self.calibrator.apply(outputs.logits), features_of(outputs), outlier_scores_of(outputs))


def save_model(folder: RunFolder, weights: Mapping[str, Tensor], manifest: Manifest) -> None:
    write_tensors(folder.model, weights)
    write_json(folder.manifest, _plain(manifest))


def _plain(manifest: Manifest) -> dict[str, Any]:
    """The manifest as it is stored."""
    return {"format": manifest.format, **manifest.model_dump(exclude_unset=True)}


def build_from_manifest(manifest: Manifest) -> nn.Module:
    """The inference module that a manifest describes, uncalibrated and without its weights.

    The manifest is untrusted: the size of the network is bounded, and code that it names is not run without consent.
    """
    check_trusted_code(manifest.net)
    with AllocationGuard():
        return _build(manifest)


def _build(manifest: Manifest) -> nn.Module:
    num_classes = len(manifest.class_names)
    method_class = get_method(manifest.method["name"])
    config = check(method_class.Config, manifest.method, where="method")
    backbone = None
    input_shape: tuple[int, ...] = manifest.input_shape
    if manifest.frozen:
        backbone = FrozenBackbone.empty(manifest.net, manifest.channels, manifest.backbone_config)
        if manifest.distilled or manifest.linear:
            return WithBackbone(backbone, LinearHead(backbone.net.feat_dim, num_classes))
        net: Network = MLPHead(backbone.net.feat_dim, num_classes, bn_momentum=0.1)
        input_shape = (backbone.net.feat_dim,)
    else:
        net = build(manifest.net, num_classes, manifest.channels, arch_config=manifest.backbone_config)
    if set(method_class.taps) - set(net.tap_dims):
        raise UserError(f"The network {manifest.net} lacks inner maps that {config.name} reads; train again.")
    attach_method(net, method_class)
    tap_dims = {name: net.tap_dims[name] for name in method_class.taps}
    counts = tuple(manifest.labelled_counts)
    info = DataInfo(num_classes, net.feat_dim, NO_POOL, counts, tap_dims, input_shape)
    module = method_class(config, info).inference_module(net)
    return module if backbone is None else WithBackbone(backbone, module)


def _from_values(values: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]]) -> Model:
    """The model of a pickle; the caller's random state is kept."""
    manifest = Manifest.model_validate(values)
    with torch.random.fork_rng(devices=[]):
        module = build_from_manifest(manifest)
    module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights.items()})
    return _finish(module, manifest)


def _finish(module: nn.Module, manifest: Manifest) -> Model:
    if manifest.calibration != IDENTITY:
        module = Calibrated(module, manifest.calibration)
    return Model(channels_last(module.eval()), manifest)


def load_weights(module: nn.Module, folder: RunFolder) -> None:
    """Load the weights of a run into a module; only finite numbers in exactly its shapes are accepted."""
    damaged = UserError(f"{folder.model} is damaged or does not fit its manifest; train again.")
    expected = module.state_dict()
    try:
        with regular_path(folder.model) as opened:
            weights = load_file(opened)
    except (SafetensorError, OSError, ValueError):
        raise damaged from None
    if weights.keys() != expected.keys():
        raise damaged
    for name, value in weights.items():
        if value.shape != expected[name].shape or value.is_complex():
            raise damaged
        if value.is_floating_point() != expected[name].is_floating_point():
            raise damaged
        weights[name] = value.to(expected[name].dtype)
        if not weights[name].isfinite().all():
            raise damaged
    module.load_state_dict(weights, strict=True)


def load_model(run: str | Path | RunFolder, manifest: Manifest | None = None) -> Model:
    """The model of a finished run; ``manifest`` is its manifest if that has been read before."""
    folder = run if isinstance(run, RunFolder) else RunFolder(run)
    if not folder.model.exists():
        raise UserError(f"{folder.path} holds no trained model; give the folder of a finished run.")
    manifest = manifest or read_manifest(folder)
    module = build_from_manifest(manifest)
    load_weights(module, folder)
    return _finish(module, manifest)
