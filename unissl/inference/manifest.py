"""manifest.json: everything but the weights that a model needs. A run writes it; the model, the report and the
exporters read it here. It is validated, since a model may come from anywhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SkipValidation,
    ValidationError,
    model_validator,
)

from unissl.config import first_mistake
from unissl.errors import UserError
from unissl.evaluation.calibrators import IDENTITY, Calibrator, read_calibrator
from unissl.inference.review import ReviewThresholds
from unissl.nets.backbones.registry import supports_distillation
from unissl.run_folder import RunFolder
from unissl.utils.atomic import read_json

Count = Annotated[int, Field(ge=0, le=2**40)]
Side = Annotated[int, Field(ge=1, le=4096)]
Finite = Annotated[float, Field(allow_inf_nan=False, ge=-1e6, le=1e6)]
Positive = Annotated[float, Field(gt=1e-6, le=1e6)]
Calibration = Annotated[
    SkipValidation[Calibrator],
    BeforeValidator(read_calibrator),
    PlainSerializer(lambda calibrator: calibrator.to_manifest()),
]


class Manifest(BaseModel):
    """Strict; fields of later versions are kept."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, use_attribute_docstrings=True)

    format: Literal["unissl-model-2"] = "unissl-model-2"
    unissl: str
    """Version of the package."""
    net: Annotated[str, Field(max_length=4096)]
    method: dict[str, Any]
    """Config of the method; the key ``name`` is the method."""
    labelled_counts: list[Count]
    """Labelled images of each class."""
    pool_images: Count
    config: str = ""
    """Hash of the run's config."""
    class_names: Annotated[list[str], Field(min_length=2)]
    height: Side
    width: Side
    channels: Annotated[int, Field(ge=1, le=16)]
    mean: list[Finite]
    std: list[Positive]
    """Of each channel, for pixels in 0..1."""
    parameters: Annotated[int, Field(ge=0, le=2**53)] = 0
    calibration: Calibration = IDENTITY
    review_thresholds: ReviewThresholds = ReviewThresholds()
    frozen: bool = False
    """The network was trained on the features of a frozen backbone, which is shipped before it."""
    distilled: bool = False
    """The last stages of the backbone were fine-tuned under a linear classifier."""
    linear: bool = False
    """A linear classifier on the features of the frozen backbone was shipped in place of the method's network."""
    crop: Side | None = None
    """Side of the centre crop that the network sees; None: the whole image."""
    backbone_config: dict[str, Any] | None = None
    """Architecture of an external network."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if len(self.labelled_counts) != len(self.class_names):
            raise ValueError("labelled_counts is not as long as class_names")
        if len(set(self.class_names)) < len(self.class_names):
            raise ValueError("two classes have the same name")
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError("mean and std are not one number per channel")
        if "crop" in self.model_fields_set and (self.crop is None or self.crop > min(self.height, self.width)):
            raise ValueError("crop is larger than the images")
        if self.distilled and not (self.frozen and supports_distillation(self.net)):
            raise ValueError("distilled is set for a network that cannot be distilled")
        if self.linear and not self.frozen:
            raise ValueError("linear is set for a network without a frozen backbone")
        if not isinstance(self.method.get("name"), str):
            raise ValueError("the method has no name")
        if not _fits(self.calibration, len(self.class_names)):
            raise ValueError("the calibration is not for this number of classes")
        return self

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the images that the model takes."""
        return self.height, self.width, self.channels

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width that the network sees, after the crop."""
        return self.channels, self.crop or self.height, self.crop or self.width


FORMAT = Manifest.model_fields["format"].default


def _fits(calibrator: Calibrator, num_classes: int) -> bool:
    try:
        return calibrator.apply_to_probs(np.full((1, num_classes), 1 / num_classes)).shape == (1, num_classes)
    except (RuntimeError, ValueError):
        return False


def read_manifest(folder: RunFolder) -> Manifest:
    path, value = folder.manifest, read_json(folder.manifest)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise UserError(f"{path} is not a manifest of this version; train again.")
    try:
        return Manifest.model_validate(value)
    except ValidationError as error:
        reason = first_mistake(error)
        raise UserError(f"{path} does not describe a model ({reason}); restore it or train again.") from None
