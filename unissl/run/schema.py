"""Schema of the JSON files in a run folder.

A run folder may come from somebody else or from a failing disk, so whoever reads it validates it first. Validation is
strict and converts nothing: readers use the JSON itself, not the models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from unissl.config import first_mistake
from unissl.data.folder.labels import CONFLICTING_LABELS
from unissl.data.images.duplicates import Copy, DuplicateGroup
from unissl.errors import UserError
from unissl.evaluation.intervals import Interval, wilson_interval
from unissl.evaluation.selective import SelectiveAccuracy

Count = Annotated[int, Field(ge=0, le=2**53)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Number = Annotated[float, Field(ge=-1e100, le=1e100, allow_inf_nan=False)]
Matrix = list[list[Count]]


class Stored(BaseModel):
    """Strict; fields of later versions are allowed."""

    model_config = ConfigDict(strict=True, extra="allow")


class AccuracySummary(Stored):
    last: Fraction
    mean_last_20: Fraction
    best: Fraction


class EstimateSummary(Stored):
    accuracy: Fraction
    low: Fraction
    high: Fraction


class CrossValidationSummary(EstimateSummary):
    """Scores on the folds, which are compared with those of the baselines."""

    folds: Count
    labels: Count
    balanced_accuracy: Fraction
    shipped: EstimateSummary | None = None
    """Estimate for the shipped classifier; absent in runs of earlier versions."""


class BaselineSummary(Stored):
    accuracy: Fraction
    balanced_accuracy: Fraction
    gain: Number
    gain_low: Number
    gain_high: Number


class ShippedSummary(Stored):
    classifier: str
    reason: str


class SelectiveAccuracySummary(Stored):
    threshold: Fraction
    images: Count
    coverage: Fraction
    correct: Count
    pool_coverage: Fraction | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.correct > self.images:
            raise ValueError("correct is larger than images")
        return self


class CalibrationSummary(Stored):
    ece_after: Number


class ReadoutSummary(Stored):
    classifier: Literal["head", "consensus"]
    agreement: Fraction
    accuracy_head: Fraction | None = None
    accuracy_consensus: Fraction | None = None


class PoolSummary(Stored):
    images: Count
    mean_confidence: Number
    truth_known: bool
    predicted: list[Count]
    accuracy: Fraction | None = None
    true_positives: list[Count] | None = None
    truth: list[Count] | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.truth_known and (self.accuracy is None or self.true_positives is None or self.truth is None):
            raise ValueError("truth_known is set, but the true classes of the pool are missing")
        if sum(self.predicted) != self.images or self.images == 0:
            raise ValueError("the predicted classes do not add up to the images of the pool")
        correct = self.true_positives
        if correct is not None and any(c > p for c, p in zip(correct, self.predicted, strict=False)):
            raise ValueError("true_positives is larger than predicted")
        return self


class SkippedFile(Stored):
    file: str
    reason: str


class IssueSummary(Stored):
    issue: str
    count: Count
    files: list[str]


class StoredCopy(Stored):
    part: str
    row: Count
    label: Count | None = None
    file: str | None = None


class StoredGroup(Stored):
    kind: str
    copies: list[StoredCopy]


class Summary(Stored):
    """summary.json."""

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
    accuracy: AccuracySummary | None = None
    balanced_accuracy: Fraction | None = None
    per_class_recall: list[Fraction | None] | None = None
    confusion_matrix: Matrix | None = None
    auroc: Fraction | None = None
    cross_validation: CrossValidationSummary | None = None
    baselines: dict[str, BaselineSummary] = {}
    shipped: ShippedSummary | None = None
    selective_accuracy: list[SelectiveAccuracySummary] = []
    calibration: CalibrationSummary | None = None
    readout: ReadoutSummary | None = None
    pool: PoolSummary | None = None
    skipped: list[SkippedFile] = []
    image_issues: list[IssueSummary] = []
    duplicates: list[StoredGroup] = []
    warnings: list[str] = []
    distilled: bool = False
    versions: dict[str, str | int] | None = None
    command: str | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for name in self.model_fields_set:
            if getattr(self, name) is None and name not in NULLABLE:
                raise ValueError(f"{name} is null")
        pool = self.pool
        per_class = [self.labelled, self.per_class_recall, self.confusion_matrix, *(self.confusion_matrix or ())]
        per_class += [] if pool is None else [pool.predicted, pool.true_positives, pool.truth]
        if any(values is not None and len(values) != len(self.class_names) for values in per_class):
            raise ValueError("a list is not as long as class_names")
        labels = [copy.label for group in self.duplicates for copy in group.copies]
        if any(label is not None and label >= len(self.class_names) for label in labels):
            raise ValueError("the label of a duplicate is not a class")
        if self.ood_test_images > self.test_images or (
            self.accuracy is not None and self.ood_test_images == self.test_images
        ):
            raise ValueError("ood_test_images is too large for test_images")
        if self.accuracy is not None and self.balanced_accuracy is None:
            raise ValueError("accuracy is given without balanced_accuracy")
        return self


NULLABLE = {"command", "versions", "balanced_accuracy", "auroc"}


class MetricsLine(Stored):
    """A line of metrics.jsonl."""

    kind: str
    step: Count = 0
    loss: dict[str, Number] = {}
    logs: dict[str, Number] = {}
    accuracy: Fraction = 0.0
    message: str = ""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        required = {"train": {"step", "loss", "logs"}, "eval": {"step"}, "warning": {"message"}}.get(self.kind, set())
        if not required <= self.model_fields_set:
            raise ValueError(f"a line of kind {self.kind} is incomplete")
        return self


class CrossValidation(Stored):
    """cross_validation.json: row, true class, predicted class and confidence of each label that was left out once."""

    rows: list[Count]
    truth: list[Count]
    predicted: list[Count]
    confidence: list[Fraction] | None = None
    """Absent in runs of earlier versions."""

    @model_validator(mode="after")
    def _is_a_table(self) -> Self:
        counts = {len(self.rows), len(self.truth), len(self.predicted), len(self.confidence or self.rows)}
        if len(counts) > 1 or not self.rows:
            raise ValueError("rows, truth, predicted and confidence are not of one length")
        return self


def require(model: type[Stored], value: Any, path: Path) -> Any:
    """``value`` itself if it fits the model; otherwise a UserError that names the first mistake."""
    try:
        model.model_validate(value)
    except ValidationError as error:
        reason = first_mistake(error)
        raise UserError(f"{path} is not what a run writes ({reason}); restore it or train again.") from None
    return value


def require_lines(lines: Sequence[Mapping[str, Any]], path: Path) -> Sequence[Mapping[str, Any]]:
    for line in lines:
        require(MetricsLine, line, path)
    return lines


def evaluated_images(summary: Mapping[str, Any]) -> int:
    """Images that the accuracy of a summary is measured on: test images of the classes or, without any, labels that
    cross-validation left out."""
    if "accuracy" in summary or "cross_validation" not in summary:
        return int(summary["test_images"] - summary.get("ood_test_images", 0))
    return int(summary["cross_validation"]["labels"])


def accuracy_interval(summary: Mapping[str, Any]) -> Interval | None:
    """The accuracy of a summary with its 95 % interval: on the test images; without any, an estimate for the shipped
    classifier from cross-validation."""
    if "accuracy" in summary:
        accuracy, images = summary["accuracy"]["last"], evaluated_images(summary)
        return wilson_interval(round(accuracy * images), images)._replace(value=accuracy)
    if "cross_validation" in summary:
        estimate = summary["cross_validation"].get("shipped", summary["cross_validation"])
        return Interval(*(estimate[name] for name in ("accuracy", "low", "high")))
    return None


def compared_accuracy(summary: Mapping[str, Any]) -> float | None:
    """The accuracy that is compared with that of baselines: on the test images; without any, on the folds."""
    if "accuracy" in summary:
        return float(summary["accuracy"]["last"])
    return float(summary["cross_validation"]["accuracy"]) if "cross_validation" in summary else None


@dataclass(frozen=True)
class BaselineScore:
    """Accuracy of a baseline, and the gain of the shipped classifier over it, as a fraction."""

    name: str
    accuracy: float
    gain: float
    interval: Interval | None = None
    """Of the gain; None where it is not known image by image."""


def baseline_scores(summary: Mapping[str, Any]) -> list[BaselineScore]:
    """The simple baselines of a summary."""
    return [
        BaselineScore(
            name, stored["accuracy"], stored["gain"], Interval(stored["gain"], stored["gain_low"], stored["gain_high"])
        )
        for name, stored in summary.get("baselines", {}).items()
    ]


def best_baseline(scores: Sequence[BaselineScore]) -> BaselineScore | None:
    """The most accurate baseline. Where it is chosen on test images, the choice favours the baselines."""
    return max(scores, key=lambda score: score.accuracy, default=None)


def selective_accuracies(summary: Mapping[str, Any]) -> list[SelectiveAccuracy]:
    """Accuracy at confidence thresholds, of the images that the accuracy of a summary is measured on."""
    return [SelectiveAccuracy.from_summary(row) for row in summary.get("selective_accuracy", [])]


def conflicting_files(summary: Mapping[str, Any]) -> int:
    """Files with several labels in the label file, which a run treats as unlabelled."""
    issues = summary.get("image_issues", [])
    return sum(item["count"] for item in issues if item["issue"].startswith(CONFLICTING_LABELS))


def duplicate_groups(summary: Mapping[str, Any]) -> list[DuplicateGroup]:
    """The duplicates of a summary."""
    return [
        DuplicateGroup(
            group["kind"], tuple(Copy(copy["part"], copy["row"], copy.get("label")) for copy in group["copies"])
        )
        for group in summary.get("duplicates", [])
    ]
