"""Scaling of backbone features before a network is trained on them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unissl.utils.mmap_rows import whole

FEATURE_NORM = 4.0
"""Euclidean norm of every scaled feature."""

Features = npt.NDArray[np.float32]


class FeatureScaler(nn.Module):
    """Standardises the entries of features (n, D), then scales every feature to the norm ``FEATURE_NORM``."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    @classmethod
    def of(cls, features: Features, rows: npt.NDArray[np.int64] | None = None) -> FeatureScaler:
        """Fitted to the clean views of features (N, V, D), of some rows or of all. An entry that is constant to
        rounding keeps its scale."""
        chosen = whole(features)[:, 0] if rows is None else whole(features)[rows, 0]
        clean = np.asarray(chosen, dtype=np.float64)
        mean, std = clean.mean(0), clean.std(0)
        std[std <= 1e-5 * np.abs(clean).max(0)] = 1.0
        return cls(torch.from_numpy(mean).float(), torch.from_numpy(std).float())

    def forward(self, features: Tensor) -> Tensor:
        scaled: Tensor = (features - self.mean) / self.std
        norm: Tensor = scaled.norm(dim=-1, keepdim=True)
        return scaled * (FEATURE_NORM / norm.clamp(min=1e-12))
