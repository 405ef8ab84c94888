"""Settings of the last part of a run on a frozen backbone."""

from __future__ import annotations

from pydantic import Field

from unissl.config import Settings


class DistilConfig(Settings):
    """Training the last stages of a frozen backbone further, on soft labels that the whole pool agrees on."""

    epochs: float = Field(default=0.0, ge=0.0, le=100.0)
    """Passes over the pool; 0 leaves the backbone as it is. For an EfficientNet-Lite with net.frozen."""
    lr: float = Field(default=3e-4, gt=0.0)
    """Learning rate of Adam at its highest."""
    batch: int = Field(default=64, ge=1)
    """Unlabelled images in a step; a quarter as many labelled ones come with them."""
    neighbours: int = Field(default=10, ge=1)
    """Nearest images in the pool over which answers are smoothed."""
