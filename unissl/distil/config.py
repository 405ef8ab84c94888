"""Settings of distillation; sharpening and class weights are constants of the teacher, loss weights of the student."""

from __future__ import annotations

from pydantic import Field

from unissl.config import Settings

MAX_TRAINING_POOL = 12_000
"""Unlabelled images that a run with distillation trains on. A larger pool is sampled, since neighbours among all images
take time that grows with the square; the shipped network predicts all of it."""


MAX_EPOCHS = 100.0


class DistilConfig(Settings):
    """Training the last stages of a frozen backbone on soft labels for the unlabelled pool."""

    epochs: float = Field(default=0.0, ge=0.0, le=MAX_EPOCHS)
    """Passes over the pool; 0: none. Needs net.freeze_backbone and a backbone with a trainable tail."""
    lr: float = Field(default=3e-4, gt=0.0)
    """Peak learning rate of Adam."""
    batch: int = Field(default=64, ge=1)
    """Unlabelled images in a step; a quarter as many labelled ones are added."""
    k_neighbours: int = Field(default=10, ge=1)
    """Nearest neighbours over which the predictions of the teacher are smoothed."""
    multi_crop: bool = True
    """The teacher also sees a zoomed centre crop and the whole of each photo, where its file exists."""
    teacher_backbone: str | None = None
    """Backbone through which the teacher sees these crops, and the centre crop once more; by default that of the run.
    Needs multi_crop. Predictions do not need it."""
    fine_tune: bool = True
    """Fine-tune the last stages; without, only a linear classifier is trained on the soft labels, in seconds."""

    @property
    def keeps_maps(self) -> bool:
        """Whether the maps that enter the last stages are cached."""
        return self.epochs > 0 and self.fine_tune
