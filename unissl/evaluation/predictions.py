"""Images to class probabilities and outlier scores, in batches and without gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unissl.augment import AugmentConfig
from unissl.augment.image_views import ImageViews
from unissl.evaluation.calibration import apply_temperature
from unissl.types import Outputs, Prediction

if TYPE_CHECKING:
    from unissl.batches import Views

Probabilities = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Predictions:
    """Class probabilities (n, C) of n images, what follows from them, and a detector's scores (n,) if there is one."""

    probs: Probabilities
    detected: Probabilities | None = None

    @property
    def classes(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.probs.argmax(1), dtype=np.int64)

    @property
    def confidence(self) -> Probabilities:
        """q_max, the largest probability."""
        return np.asarray(self.probs.max(1), dtype=np.float32)

    @property
    def margin(self) -> Probabilities:
        """q_gap, the largest probability minus the second largest."""
        top_two = np.partition(self.probs, -2, axis=1)[:, -2:]
        return np.asarray(top_two[:, 1] - top_two[:, 0], dtype=np.float32)

    @property
    def outlier(self) -> Probabilities:
        """How much each image looks like none of the classes: by the method's detector, or one minus the confidence."""
        return 1 - self.confidence if self.detected is None else self.detected

    def at_temperature(self, temperature: float) -> Predictions:
        """The same logits at another temperature. The outlier score stays as it is: a temperature that was fitted on
        images of the classes knows nothing about others."""
        if temperature == 1.0:
            return self
        return Predictions(apply_temperature(self.probs, temperature).astype(np.float32), self.outlier)


def predict_rows(
    answer: Callable[[Tensor], Outputs | Prediction],
    views: Views,
    *,
    rows: npt.NDArray[np.int64] | None = None,
    batch_size: int = 256,
) -> Predictions:
    """Probabilities and outlier scores of all rows, or of some, as they are, without augmentation."""
    chosen = np.arange(len(views)) if rows is None else rows
    parts, detected = [], []
    for start in range(0, len(chosen), batch_size):
        with torch.no_grad():
            said = answer(views("none", chosen[start : start + batch_size]))
        parts.append(said.logits.softmax(-1).cpu().to(torch.float32).numpy())
        if isinstance(said, Prediction) and said.outlier is not None:
            detected.append(said.outlier.cpu().to(torch.float32).numpy())
    if not parts:
        raise ValueError("no images to predict")
    return Predictions(np.concatenate(parts), np.concatenate(detected) if detected else None)


def predict_images(
    answer: Callable[[Tensor], Outputs | Prediction],
    images: npt.NDArray[np.uint8],
    mean: Sequence[float],
    std: Sequence[float],
    *,
    rows: npt.NDArray[np.int64] | None = None,
    batch_size: int = 256,
) -> Predictions:
    """The same for uint8 images (n, h, w, channels) on the CPU."""
    views = ImageViews(images, AugmentConfig(), mean, std, torch.device("cpu"))
    return predict_rows(answer, views, rows=rows, batch_size=batch_size)
