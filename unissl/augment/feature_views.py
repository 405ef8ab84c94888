"""Views of feature vectors: what a strong augmentation is where nothing but numbers is left.

A row holds one vector or several: the first is that of the clean image, the others are those of augmented copies, made
once by a frozen backbone and stored. A strong view is one of the copies, drawn at random, of whose entries a share is
dropped and the rest scaled up, so that the mean stays; where there are no copies it is the clean vector, dropped
likewise. Every other view is the clean vector, a share of which labelled images may lack too: a flip or a crop of it
does not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unissl.augment.draws import uniform_table
from unissl.augment.views import AugmentConfig, check_view_name

Vectors = npt.NDArray[np.float32]


def as_they_are(vectors: Tensor) -> Tensor:
    return vectors


@dataclass(frozen=True)
class FeatureViews:
    """``features`` is float (N, V, D): V vectors of length D for each of N rows; it may be memory-mapped.

    ``scale`` is applied to the vectors (n, D) of a batch, before entries are dropped: to a copy of the whole table it
    would cost as much memory again.
    """

    features: Vectors
    config: AugmentConfig
    device: torch.device
    scale: Callable[[Tensor], Tensor] = as_they_are

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
        strong = view.startswith("strong")
        labelled = stream == "labelled" and view != "none"
        dropout = self.config.feature_dropout if strong else self.config.labelled_feature_dropout * labelled
        if not strong and not dropout:
            return self._vectors(rows, np.zeros_like(rows))
        first, end = (0, len(rows)) if positions is None else (positions.start or 0, positions.stop)
        if end - first != len(rows):
            raise ValueError("positions must name one place in the global batch per row")
        draws = uniform_table(seed, step, stream, view, end, 1 + self.features.shape[2])[first:]
        copies = self.features.shape[1] - 1 if strong else 0
        which = (1 + draws[:, 0] * copies).to(torch.int64).numpy() if copies else np.zeros_like(rows)
        keep = (draws[:, 1:] >= dropout).to(self.device)
        return self._vectors(rows, which) * keep / (1 - dropout)

    def _vectors(self, rows: npt.NDArray[np.int64], which: npt.NDArray[np.int64]) -> Tensor:
        chosen = torch.from_numpy(np.ascontiguousarray(self.features[rows, which]))
        return self.scale(chosen.to(self.device, torch.get_default_dtype()))
