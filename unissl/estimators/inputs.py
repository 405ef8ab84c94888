"""How rows of ``X``, images or features, become views: the state of the preprocessing, which ``fit`` learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unissl.augment.feature_views import FeatureViews
from unissl.augment.image_views import ImageViews
from unissl.batches import Views
from unissl.data.arrays import checked_images
from unissl.data.dataset import channel_mean_std
from unissl.data.images.resize import ResizedImages
from unissl.estimators.labels import InvalidInput, as_value_errors
from unissl.features import (
    CachedFeatures,
    FeatureScaler,
    FrozenBackbone,
    extract_features,
    load_backbone,
    normalisation,
)
from unissl.run.config import RunConfig
from unissl.types import Floats, Pixels, Rows

CLIP = 5.0
"""Features are clipped to this many standard deviations."""


def is_images(X: Any) -> bool:
    """Whether X has three or four dimensions; scikit-learn validates everything else as features."""
    return (X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim) in (3, 4)


def read_images(X: Any) -> Pixels:
    """Images as uint8 (n, h, w, channels)."""
    with as_value_errors():
        return checked_images(X, "images in X")


@dataclass(frozen=True)
class ImageInputs:
    """Images of one shape (height, width, channels), normalised by mean and std per channel."""

    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def read(self, X: Any) -> Pixels:
        """Images to predict."""
        images = read_images(X) if is_images(X) else None
        if images is None or images.shape[1:] != self.shape:
            raise InvalidInput(
                f"X has shape {np.shape(X)}, but the classifier was fitted to images of shape {self.shape} "
                "(height, width, channels); resize X to it."
            )
        return images

    def training_views(self, images: Pixels, config: RunConfig, device: torch.device) -> Views:
        return ImageViews(images, config.augment, self.mean, self.std, device)

    prediction_views = training_views

    def empty_views(self, config: RunConfig) -> Views:
        """Views of no rows, which suffice to build the network."""
        return self.training_views(np.zeros((0, *self.shape), np.uint8), config, torch.device("cpu"))


def resized(images: Pixels, size: int | None) -> Pixels | ResizedImages:
    return images if size is None else ResizedImages(images, size)


def extracted(images: Pixels, config: RunConfig, device: torch.device) -> CachedFeatures:
    """Features of the configured backbone, from the cache where they are in it."""
    augment, sized = config.augment, resized(images, config.data.image_size)
    return extract_features(sized, config.net.name, augment, device, bf16=config.machine.bf16)


@dataclass(frozen=True)
class FrozenBackboneInputs(ImageInputs):
    """Images that are trained on by their features of a frozen backbone, standardised by ``feature_mean`` and
    ``feature_std``.

    The backbone takes squares of ``size`` pixels, or the images unchanged if ``size`` is None. It is not stored but
    loaded again, as in ``fit``.
    """

    name: str
    size: int | None
    feature_mean: Floats
    feature_std: Floats

    @property
    def scaler(self) -> FeatureScaler:
        return FeatureScaler(torch.from_numpy(self.feature_mean), torch.from_numpy(self.feature_std))

    def training_views(self, images: Pixels, config: RunConfig, device: torch.device) -> Views:
        cached = extracted(images, config, device)
        return FeatureViews(cached.features, config.augment, device, self.scaler.to(device))

    def prediction_views(self, images: Pixels, config: RunConfig, device: torch.device) -> Views:
        """Features of new images are computed for each batch and not cached."""
        backbone = FrozenBackbone(load_backbone(self.name, self.shape[2]), self.scaler).to(device)
        return BackboneViews(
            ImageViews(resized(images, self.size), config.augment, self.mean, self.std, device), backbone
        )

    def empty_views(self, config: RunConfig) -> Views:
        return FeatureViews(np.zeros((0, 1, len(self.feature_mean)), np.float32), config.augment, torch.device("cpu"))


@dataclass(frozen=True)
class BackboneViews:
    """Features of images, computed for each batch."""

    images: ImageViews
    backbone: FrozenBackbone

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.backbone.net.feat_dim,)

    def __len__(self) -> int:
        return len(self.images)

    @torch.no_grad()
    def __call__(self, view: str, rows: Rows, **address: Any) -> Tensor:
        features: Tensor = self.backbone(self.images(view, rows, **address))
        return features


@dataclass(frozen=True)
class FeatureInputs:
    """Features that are standardised by the mean and std of ``fit``, then clipped.

    So the units of the data do not matter, and an outlier cannot dominate. Unlike the features of a backbone
    (``unissl.features.FeatureScaler``) rows are not scaled to one norm, which carries much of the information in a few
    measurements.
    """

    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]

    @classmethod
    def of(cls, features: npt.NDArray[Any]) -> FeatureInputs:
        mean, std = features.mean(0, dtype=np.float64), features.std(0, dtype=np.float64)
        rounding = 10 * np.finfo(features.dtype).eps * np.abs(features).max(0)
        return cls(mean, np.where(std <= rounding, 1.0, std))

    def training_views(self, features: npt.NDArray[Any], config: RunConfig, device: torch.device) -> Views:
        """Standardised in float64, since the mean may be much larger than the deviation."""
        scaled = ((features - self.mean) / self.std).clip(-CLIP, CLIP).astype(np.float32)
        return FeatureViews(scaled[:, None], config.augment, device)

    prediction_views = training_views

    def empty_views(self, config: RunConfig) -> Views:
        return self.training_views(np.zeros((0, len(self.mean))), config, torch.device("cpu"))


Inputs = ImageInputs | FeatureInputs


def inputs_of(rows: npt.NDArray[Any], config: RunConfig, device: torch.device) -> Inputs:
    """The preprocessing of images (n, h, w, channels) or features (n, d), fitted to them."""
    if rows.ndim == 2:
        return FeatureInputs.of(rows)
    shape = rows.shape[1:]
    if config.net.freeze_backbone:
        net, size, scaler = config.net.name, config.data.image_size, extracted(rows, config, device).scaler
        mean, std = scaler.mean.numpy(), scaler.std.numpy()
        return FrozenBackboneInputs(shape, *normalisation(shape[2]), net, size, mean, std)
    return ImageInputs(shape, *(normalisation(shape[2]) if config.net.pretrained else channel_mean_std(rows)))
