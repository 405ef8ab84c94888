"""Views of the images of a table: rows in, normalised tensors on the training device out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unissl.augment.views import AugmentConfig, apply_view, make_view, normalise, view_draws
from unissl.ops.keyed_random import uniform_rows
from unissl.utils.mmap_rows import take_rows


@dataclass(frozen=True)
class ImageViews:
    """``mean`` and ``std`` are per channel, for pixels in 0..1. The images may be memory-mapped."""

    images: npt.NDArray[np.uint8]
    config: AugmentConfig
    mean: Sequence[float]
    std: Sequence[float]
    device: torch.device

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        height, width, channels = self.images.shape[1:]
        return channels, self.config.crop or height, self.config.crop or width

    def __len__(self) -> int:
        return len(self.images)

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
        """One view of each row, float (n, channels, H, W). Equal arguments give equal numbers."""
        pixels = make_view(view, self._raw(rows), self.config, seed=seed, step=step, stream=stream, positions=positions)
        return normalise(pixels, self.mean, self.std)

    def keyed(self, view: str, rows: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64]) -> Tensor:
        """One view of each row, random by the ``keys`` (n, 2) of the images and not by step or position."""
        draws = uniform_rows(keys, view, view_draws(view, self.config))
        return normalise(apply_view(view, self._raw(rows), self.config, draws), self.mean, self.std)

    def _raw(self, rows: npt.NDArray[np.int64]) -> Tensor:
        raw = torch.from_numpy(np.ascontiguousarray(take_rows(self.images, rows)))
        if self.device.type == "cuda":  # from pinned memory the copy runs in parallel with the step
            return raw.pin_memory().to(self.device, non_blocking=True)
        return raw.to(self.device)
