"""Settings of distillation."""

from __future__ import annotations

from pydantic import Field

from unissl.config import Settings

MAX_FEATURE_MAPS = 20_000
"""Images whose maps are cached: 70 KB each at 160 pixels with two copies. Beyond, there is no distillation."""


class DistilConfig(Settings):
    """Training the last stages of a frozen backbone on soft labels for the unlabelled pool."""

    epochs: float = Field(default=0.0, ge=0.0, le=100.0)
    """Passes over the pool; 0: none. Needs net.freeze_backbone and a backbone with a trainable tail."""
    lr: float = Field(default=3e-4, gt=0.0)
    """Peak learning rate of Adam."""
    batch: int = Field(default=64, ge=1)
    """Unlabelled images in a step; a quarter as many labelled ones are added."""
    k_neighbours: int = Field(default=10, ge=1)
    """Nearest neighbours over which the predictions of the teacher are smoothed."""
    multi_crop: bool = True
    """The teacher also sees a zoomed centre crop and the whole of each photo, where its file exists."""

    def keeps_maps(self, images: int) -> bool:
        """Whether the maps that enter the last stages are cached for so many images."""
        return self.epochs > 0 and images <= MAX_FEATURE_MAPS
