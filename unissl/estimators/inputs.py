"""What ``X`` is, images or vectors, and how its rows become views: learnt from the rows of ``fit``, plain to store."""

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
from unissl.data.images.channel_stats import channel_mean_std
from unissl.data.images.resized import ResizedImages
from unissl.estimators.refusal import RefusedInput, as_value_errors
from unissl.features.extract import FeatureScaler, FrozenBackbone, backbone_features, load_backbone, normalisation
from unissl.run.config import RunConfig

CLIP = 5.0
"""Standard deviations that an entry of a vector is kept within."""

Images = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]


def is_images(X: Any) -> bool:
    """Three or four dimensions are images; everything else is for scikit-learn to judge as a table of numbers."""
    return (X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim) in (3, 4)


def read_images(X: Any) -> Images:
    """uint8 (n, h, w, channels)."""
    with as_value_errors():
        return checked_images(X, "images in X")


@dataclass(frozen=True)
class ImageInputs:
    """Images of one shape (height, width, channels), with the moments that they are normalised by."""

    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def read(self, X: Any) -> Images:
        """Images to be predicted."""
        images = read_images(X) if is_images(X) else None
        if images is None or images.shape[1:] != self.shape:
            raise RefusedInput(
                f"X has shape {np.shape(X)}, but the classifier was fitted to images of shape {self.shape} "
                "(height, width, channels); bring X to that."
            )
        return images

    def training(self, images: Images, config: RunConfig, device: torch.device) -> Views:
        return ImageViews(images, config.augment, self.mean, self.std, device)

    def prediction(self, images: Images, config: RunConfig, device: torch.device) -> Views:
        return ImageViews(images, config.augment, self.mean, self.std, device)

    def nothing(self, config: RunConfig) -> Views:
        """Views of no rows, from which the network can be built."""
        return self.training(np.zeros((0, *self.shape), np.uint8), config, torch.device("cpu"))


def at_size(images: Images, size: int | None) -> Images | ResizedImages:
    return images if size is None else ResizedImages(images, size)


@dataclass(frozen=True)
class FrozenInputs(ImageInputs):
    """Images whose vectors of a frozen backbone are learnt from, standardised by ``centre`` and ``spread``.

    The backbone sees them as squares of ``size`` pixels, or as they are where that is None. It is not stored itself,
    but comes from where it came from for ``fit``.
    """

    name: str
    size: int | None
    centre: npt.NDArray[np.float32]
    spread: npt.NDArray[np.float32]

    @property
    def scaling(self) -> FeatureScaler:
        return FeatureScaler(torch.from_numpy(self.centre), torch.from_numpy(self.spread))

    def training(self, images: Images, config: RunConfig, device: torch.device) -> Views:
        vectors = backbone_features(
            at_size(images, self.size), self.name, config.augment, config.augment.cached_views, device
        )
        return FeatureViews(vectors, config.augment, device, self.scaling.to(device))

    def prediction(self, images: Images, config: RunConfig, device: torch.device) -> Views:
        """Vectors made when they are asked for: those of new images are not worth a place in the cache."""
        front = FrozenBackbone(load_backbone(self.name, self.shape[2]), self.scaling).to(device)
        return ThroughFront(ImageViews(at_size(images, self.size), config.augment, self.mean, self.std, device), front)

    def nothing(self, config: RunConfig) -> Views:
        return FeatureViews(np.zeros((0, 1, len(self.centre)), np.float32), config.augment, torch.device("cpu"))


@dataclass(frozen=True)
class ThroughFront:
    """Vectors of images, made anew for each batch."""

    images: ImageViews
    front: FrozenBackbone

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.front.net.feat_dim,)

    def __len__(self) -> int:
        return len(self.images)

    @torch.no_grad()
    def __call__(self, view: str, rows: npt.NDArray[np.int64], **address: Any) -> Tensor:
        vectors: Tensor = self.front(self.images(view, rows, **address))
        return vectors


@dataclass(frozen=True)
class VectorInputs:
    """Vectors whose entries are standardised by those in ``fit`` and then clipped.

    So the units of the data do not matter, and an outlier cannot outweigh the rest. Unlike the vectors of a backbone
    (``unissl.features.extract.FeatureScaler``) they are not scaled to one length: of a few measurements little is left without it.
    """

    mean: Floats
    std: Floats

    @classmethod
    def of(cls, vectors: npt.NDArray[Any]) -> VectorInputs:
        mean, std = vectors.mean(0, dtype=np.float64), vectors.std(0, dtype=np.float64)
        rounding = 10 * np.finfo(vectors.dtype).eps * np.abs(vectors).max(0)
        return cls(mean, np.where(std <= rounding, 1.0, std))

    def training(self, vectors: npt.NDArray[Any], config: RunConfig, device: torch.device) -> Views:
        """Standardised in float64, since the mean may be large beside the deviation."""
        scaled = ((vectors - self.mean) / self.std).clip(-CLIP, CLIP).astype(np.float32)
        return FeatureViews(scaled[:, None], config.augment, device)

    def prediction(self, vectors: npt.NDArray[Any], config: RunConfig, device: torch.device) -> Views:
        return self.training(vectors, config, device)

    def nothing(self, config: RunConfig) -> Views:
        return self.training(np.zeros((0, len(self.mean))), config, torch.device("cpu"))


Inputs = ImageInputs | VectorInputs


def inputs_of(rows: npt.NDArray[Any], config: RunConfig, device: torch.device) -> Inputs:
    """What ``fit`` has to remember of images (n, h, w, channels) or vectors (n, d)."""
    if rows.ndim == 2:
        return VectorInputs.of(rows)
    shape = rows.shape[1:]
    if config.net.freeze_backbone:
        size = config.data.image_size
        vectors = backbone_features(
            at_size(rows, size), config.net.name, config.augment, config.augment.cached_views, device
        )
        scaling = FeatureScaler.of(vectors)
        moments = normalisation(shape[2])
        return FrozenInputs(shape, *moments, config.net.name, size, scaling.mean.numpy(), scaling.std.numpy())
    return ImageInputs(shape, *(normalisation(shape[2]) if config.net.pretrained else channel_mean_std(rows)))
