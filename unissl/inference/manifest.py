"""What manifest.json must say before a network is built from it: it may come with a model from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from unissl.config import first_mistake
from unissl.errors import UserError
from unissl.nets.pretrained import WEIGHTS

Count = Annotated[int, Field(ge=0, le=2**53)]
Finite = Annotated[float, Field(allow_inf_nan=False, ge=-1e6, le=1e6)]
Positive = Annotated[float, Field(gt=1e-6, le=1e6)]


class ReviewThresholds(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    confidence: Finite = 0.5
    outlier: Finite = 1.0


class Manifest(BaseModel):
    """Strict, with room for fields of later versions: what is checked here is then read from the file itself."""

    model_config = ConfigDict(strict=True, extra="allow")

    unissl: str
    net: Annotated[str, Field(max_length=4096)]
    method: dict[str, Any]
    labelled_counts: list[Annotated[int, Field(ge=0, le=2**40)]]
    pool_images: Annotated[int, Field(ge=0, le=2**40)]
    class_names: Annotated[list[str], Field(min_length=2)]
    height: Annotated[int, Field(ge=1, le=4096)]
    width: Annotated[int, Field(ge=1, le=4096)]
    crop: Annotated[int, Field(ge=1, le=4096)] | None = None
    channels: Annotated[int, Field(ge=1, le=16)]
    mean: list[Finite]
    std: list[Positive]
    temperature: Positive = 1.0
    review_thresholds: ReviewThresholds = ReviewThresholds()
    frozen: bool = False
    distilled: bool = False
    backbone_config: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if len(self.labelled_counts) != len(self.class_names):
            raise ValueError("labelled_counts is not as long as class_names")
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError("mean and std are not one number per channel")
        if "crop" in self.model_fields_set and (self.crop is None or self.crop > min(self.height, self.width)):
            raise ValueError("crop is larger than the images")
        if self.distilled and not (self.frozen and self.net in WEIGHTS):
            raise ValueError("distilled is said of a network that has no such stages")
        if not isinstance(self.method.get("name"), str):
            raise ValueError("the method has no name")
        return self


def require_manifest(value: Any, path: Path) -> Mapping[str, Any]:
    try:
        Manifest.model_validate(value)
    except ValidationError as error:
        reason = first_mistake(error)
        raise UserError(f"{path} does not describe a model ({reason}); restore it or train again.") from None
    checked: Mapping[str, Any] = value
    return checked
