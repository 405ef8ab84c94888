"""Scaling of backbone features before a network is trained on them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unissl.utils.mmap_rows import take_rows

FEATURE_NORM = 4.0
"""Euclidean norm of every scaled feature."""

BLOCK = 128
"""Entries that are standardised at once."""

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
        chosen = np.arange(len(features)) if rows is None else rows
        clean = take_rows(features[:, 0], chosen)
        mean, std = np.empty(clean.shape[1]), np.empty(clean.shape[1])
        for start in range(0, clean.shape[1], BLOCK):  # a float64 copy of all entries would be large
            columns = slice(start, start + BLOCK)
            part = clean[:, columns].astype(np.float64)
            mean[columns], std[columns] = part.mean(0), part.std(0)
            std[columns][std[columns] <= 1e-5 * np.abs(part).max(0)] = 1.0
        return cls(torch.from_numpy(mean).float(), torch.from_numpy(std).float())

    def forward(self, features: Tensor) -> Tensor:
        scaled: Tensor = (features - self.mean) / self.std
        norm: Tensor = scaled.norm(dim=-1, keepdim=True)
        return scaled * (FEATURE_NORM / norm.clamp(min=1e-12))
