"""Settings of the last part of a run on a frozen backbone."""

from __future__ import annotations

from pydantic import Field

from unissl.config import Settings

MAX_FEATURE_MAPS = 20_000
"""Images whose maps are kept: 70 KB each at 160 pixels with two copies. Beyond, the backbone stays as it is."""


class DistilConfig(Settings):
    """Training the last stages of a frozen backbone further, on soft labels that the whole pool agrees on."""

    epochs: float = Field(default=0.0, ge=0.0, le=100.0)
    """Passes over the pool; 0 leaves the backbone as it is. For an EfficientNet-Lite with net.freeze_backbone."""
    lr: float = Field(default=3e-4, gt=0.0)
    """Learning rate of Adam at its highest."""
    batch: int = Field(default=64, ge=1)
    """Unlabelled images in a step; a quarter as many labelled ones come with them."""
    k_neighbours: int = Field(default=10, ge=1)
    """Nearest images in the pool over which answers are smoothed."""
    multi_crop: bool = True
    """Soft labels are also made from a zoom into each photo and from the whole of it, where its file is at hand."""

    def keeps_maps(self, images: int) -> bool:
        """Whether the maps that enter the last stages are kept for so many images."""
        return self.epochs > 0 and images <= MAX_FEATURE_MAPS
