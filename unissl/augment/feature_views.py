"""Views of feature vectors: augmentation where only the numbers of a frozen backbone are left.

A row holds one feature vector or several: the first is that of the clean image, the others are those of augmented
views, made once by the backbone and cached. A strong view is a cached one, drawn at random, or the clean one if none is
cached; a share of its entries is dropped and the rest scaled up, so that the mean stays. A weak view is the clean
vector, a share of which labelled images may lack too. A second weak view (``flip``, ``weak2``) lacks a small share of
entries of its own: a flip or a crop of a feature vector does not exist, and the same numbers twice would leave
consistency nothing to learn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unissl.augment.views import AugmentConfig, check_view_name
from unissl.ops.keyed_random import uniform_table
from unissl.utils.mmap_rows import take_rows

Features = npt.NDArray[np.float32]


def identity(features: Tensor) -> Tensor:
    return features


@dataclass(frozen=True)
class FeatureViews:
    """``features`` is float (N, V, D): V feature vectors of length D for each of N rows; it may be memory-mapped.

    ``scale`` is applied to the features (n, D) of a batch, before entries are dropped: applied to the whole table it
    would cost as much memory again.
    """

    features: Features
    config: AugmentConfig
    device: torch.device
    scale: Callable[[Tensor], Tensor] = identity

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.features.shape[2],)

    def __len__(self) -> int:
        return len(self.features)

    def __call__(
        self,
        view: str,
        rows: npt.NDArray[np.int64],
        *,
        seed: int = 0,
        step: int = 0,
        stream: str = "",
        positions: slice | None = None,
    ) -> Tensor:
        """One view of each row, float (n, D). Equal arguments give equal numbers."""
        check_view_name(view)
        dropout = self._dropout(view, stream)
        strong = view.startswith("strong")
        if not strong and not dropout:
            return self._load(rows, np.zeros_like(rows))
        first, end = (0, len(rows)) if positions is None else (positions.start or 0, positions.stop)
        if end - first != len(rows):
            raise ValueError("positions must name one position in the global batch per row")
        draws = uniform_table(seed, step, stream, view, end, 1 + self.features.shape[2])[first:]
        cached = self.features.shape[1] - 1 if strong else 0
        which = (1 + draws[:, 0] * cached).to(torch.int64).numpy() if cached else np.zeros_like(rows)
        keep = (draws[:, 1:] >= dropout).to(self.device)
        return self._load(rows, which) * keep / (1 - dropout)

    def _dropout(self, view: str, stream: str) -> float:
        """Share of the entries that a view lacks."""
        if view == "none":
            return 0.0
        if view.startswith("strong"):
            return self.config.feature_dropout
        second = 0.0 if view == "weak" else self.config.second_view_dropout
        return max(second, self.config.labelled_feature_dropout if stream == "labelled" else 0.0)

    def _load(self, rows: npt.NDArray[np.int64], which: npt.NDArray[np.int64]) -> Tensor:
        chosen = torch.from_numpy(np.ascontiguousarray(take_rows(self.features, rows, which)))
        return self.scale(chosen.to(self.device, torch.get_default_dtype()))
