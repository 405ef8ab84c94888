"""How rows of ``X``, images or features, become views: the state of the preprocessing, which ``fit`` learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unissl.augment.feature_views import FeatureViews
from unissl.augment.image_views import ImageViews
from unissl.batches import Views
from unissl.data.arrays import checked_images
from unissl.data.dataset import channel_mean_std
from unissl.estimators.labels import InvalidInput, as_value_errors
from unissl.features import normalisation
from unissl.run.config import RunConfig
from unissl.types import Pixels

CLIP = 5.0
"""Features are clipped to this many standard deviations."""


def is_images(X: Any) -> bool:
    """Whether X has three or four dimensions; scikit-learn validates everything else as features."""
    return (X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim) in (3, 4)


def read_images(X: Any) -> Pixels:
    """Pixels as uint8 (n, h, w, channels)."""
    with as_value_errors():
        return checked_images(X, "images in X")


def read_images_of_shape(X: Any, shape: tuple[int, ...]) -> Pixels:
    """Pixels to predict, of the ``shape`` (height, width, channels) that was fitted."""
    images = read_images(X) if is_images(X) else None
    if images is None or images.shape[1:] != shape:
        raise InvalidInput(
            f"X has shape {np.shape(X)}, but the classifier was fitted to images of shape {shape} "
            "(height, width, channels); resize X to it."
        )
    return images


@dataclass(frozen=True)
class ImageInputs:
    """Pixels of one shape (height, width, channels), normalised by mean and std per channel."""

    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def views(self, images: Pixels, config: RunConfig, device: torch.device) -> Views:
        return ImageViews(images, config.augment, self.mean, self.std, device)

    def empty_views(self, config: RunConfig) -> Views:
        """Views of no rows, which suffice to build the network."""
        return self.views(np.zeros((0, *self.shape), np.uint8), config, torch.device("cpu"))


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

    def views(self, features: npt.NDArray[Any], config: RunConfig, device: torch.device) -> Views:
        """Standardised in float64, since the mean may be much larger than the deviation."""
        scaled = ((features - self.mean) / self.std).clip(-CLIP, CLIP).astype(np.float32)
        return FeatureViews(scaled[:, None], config.augment, device)

    def empty_views(self, config: RunConfig) -> Views:
        return self.views(np.zeros((0, len(self.mean))), config, torch.device("cpu"))


Inputs = ImageInputs | FeatureInputs


def inputs_of(rows: npt.NDArray[Any], config: RunConfig) -> Inputs:
    """The preprocessing of images (n, h, w, channels) or features (n, d), fitted to them."""
    if rows.ndim == 2:
        return FeatureInputs.of(rows)
    shape = rows.shape[1:]
    return ImageInputs(shape, *(normalisation(shape[2]) if config.net.pretrained else channel_mean_std(rows)))
