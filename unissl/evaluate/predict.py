"""Images to class probabilities, in batches and without gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unissl.augment import normalise

Probabilities = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Predictions:
    """Class probabilities (n, C) of n images, and what follows from them."""

    probs: Probabilities

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


def predict_images(
    logits_of: Callable[[Tensor], Tensor],
    images: npt.NDArray[np.uint8],
    mean: Sequence[float],
    std: Sequence[float],
    *,
    rows: npt.NDArray[np.int64] | None = None,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
) -> Predictions:
    """Probabilities of ``images`` (or of some of its rows) as they are, without augmentation."""
    chosen = np.arange(len(images)) if rows is None else rows
    parts = []
    for start in range(0, len(chosen), batch_size):
        raw = torch.from_numpy(np.ascontiguousarray(images[chosen[start : start + batch_size]])).to(device)
        with torch.no_grad():
            probs = logits_of(normalise(raw, mean, std)).softmax(-1)
        parts.append(probs.cpu().to(torch.float32).numpy())
    if not parts:
        raise ValueError("no images to predict")
    return Predictions(np.concatenate(parts))
