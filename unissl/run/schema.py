"""What the files of a run folder must look like before a page is made of them.

The page takes the files at their word, and a run folder may come from somebody else or from a bad disk. So they are
held against these models first, strictly: nothing is converted, since the page reads the file and not the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from unissl.config import first_mistake
from unissl.errors import UserError

Count = Annotated[int, Field(ge=0, le=2**53)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Number = Annotated[float, Field(ge=-1e100, le=1e100, allow_inf_nan=False)]
Matrix = list[list[Count]]


class Stored(BaseModel):
    """Strict, with room for fields of later versions."""

    model_config = ConfigDict(strict=True, extra="allow")


class ThreeWays(Stored):
    last: Share
    mean_last_20: Share
    best: Share


class Estimated(Stored):
    folds: Count
    labels: Count
    accuracy: Share
    low: Share
    high: Share
    balanced_accuracy: Share


class Calibrated(Stored):
    ece_after: Number


class Pool(Stored):
    images: Count
    mean_confidence: Number
    truth_known: bool
    predicted: list[Count]
    accuracy: Share | None = None
    true_positives: list[Count] | None = None
    truth: list[Count] | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.truth_known and (self.accuracy is None or self.true_positives is None or self.truth is None):
            raise ValueError("the truth of the pool is said to be known and not given")
        if sum(self.predicted) != self.images or self.images == 0:
            raise ValueError("the predicted classes do not add up to the images of the pool")
        right = self.true_positives
        if right is not None and any(r > p for r, p in zip(right, self.predicted, strict=False)):
            raise ValueError("more images are right than were predicted")
        return self


class LeftOut(Stored):
    file: str
    reason: str


class Remarked(Stored):
    remark: str
    count: Count
    files: list[str]


class Copied(Stored):
    part: str
    row: Count
    label: Count | None = None
    file: str | None = None


class Group(Stored):
    kind: str
    copies: list[Copied]


class Summary(Stored):
    """summary.json, as far as the page reads it."""

    method: str
    data: str
    net: str
    config: str
    seed: Count
    steps: Count
    parameters: Count
    seconds: Annotated[Number, Field(ge=0)]
    class_names: Annotated[list[str], Field(min_length=2)]
    labelled: list[Count]
    test_images: Count
    calibration_images: Count = 0
    ood_test_images: Count = 0
    accuracy: ThreeWays | None = None
    balanced_accuracy: Share | None = None
    per_class_recall: list[Share | None] | None = None
    confusion_matrix: Matrix | None = None
    auroc: Share | None = None
    cross_validation: Estimated | None = None
    calibration: Calibrated | None = None
    pool: Pool | None = None
    skipped: list[LeftOut] = []
    image_issues: list[Remarked] = []
    duplicates: list[Group] = []
    warnings: list[str] = []
    distilled: bool = False
    versions: dict[str, str | int] | None = None
    command: str | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        for name in self.model_fields_set:
            if getattr(self, name) is None and name not in MAY_BE_NULL:
                raise ValueError(f"{name} is null")
        pool = self.pool
        lists = [self.labelled, self.per_class_recall, self.confusion_matrix, *(self.confusion_matrix or ())]
        lists += [] if pool is None else [pool.predicted, pool.true_positives, pool.truth]
        if any(given is not None and len(given) != len(self.class_names) for given in lists):
            raise ValueError("a list is not as long as there are classes")
        labels = [copy.label for group in self.duplicates for copy in group.copies]
        if any(label is not None and label >= len(self.class_names) for label in labels):
            raise ValueError("a copy has a label that is none of the classes")
        if self.ood_test_images > self.test_images or (
            self.accuracy is not None and self.ood_test_images == self.test_images
        ):
            raise ValueError("there are more unknown test images than test images")
        if self.accuracy is not None and self.balanced_accuracy is None:
            raise ValueError("the accuracy is given without the balanced one")
        return self


MAY_BE_NULL = {"command", "versions", "balanced_accuracy", "auroc"}


class Line(Stored):
    """A line of metrics.jsonl."""

    kind: str
    step: Count = 0
    loss: dict[str, Number] = {}
    logs: dict[str, Number] = {}
    accuracy: Share = 0.0
    message: str = ""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        wanted = {"train": {"step", "loss", "logs"}, "eval": {"step"}, "warning": {"message"}}.get(self.kind, set())
        if not wanted <= self.model_fields_set:
            raise ValueError(f"a line of kind {self.kind} is incomplete")
        return self


class Card(Stored):
    """manifest.json, as far as the page reads it."""

    unissl: str
    width: Count
    height: Count
    channels: Count


class Estimate(Stored):
    """cross_validation.json: what was said about each label that was left out."""

    rows: list[Count]
    truth: list[Count]
    predicted: list[Count]

    @model_validator(mode="after")
    def _is_a_table(self) -> Self:
        if not len(self.rows) == len(self.truth) == len(self.predicted) > 0:
            raise ValueError("rows, truth and predicted are not of one length")
        return self


def require(model: type[Stored], value: Any, path: Path) -> Any:
    """``value`` itself if it is what the model says, otherwise one sentence with the place that is wrong."""
    try:
        model.model_validate(value)
    except ValidationError as error:
        reason = first_mistake(error)
        raise UserError(f"{path} is not what a run writes ({reason}); restore it or train again.") from None
    return value


def require_lines(lines: Sequence[Mapping[str, Any]], path: Path) -> Sequence[Mapping[str, Any]]:
    for line in lines:
        require(Line, line, path)
    return lines
