"""A table of images at another size than it is stored in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unissl.data.images.decode import scale_arrays
from unissl.utils.mmap_rows import whole

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ResizedImages:
    """Images (n, h, w, channels) as squares of ``size`` pixels, each scaled when it is read.

    A whole table, scaled up for a pretrained network, may not fit into memory.
    """

    images: Pixels
    size: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.images), self.size, self.size, self.images.shape[3]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: slice | npt.NDArray[np.int64]) -> Pixels:
        return scale_arrays(whole(self.images)[rows], self.size)
