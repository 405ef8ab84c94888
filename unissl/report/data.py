"""Everything that a report shows, computed once: findings, charts, tables and galleries read it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

from unissl.data.images.duplicates import DuplicateGroup
from unissl.evaluation.calibration import Bin, calibration_error, reliability
from unissl.evaluation.intervals import Interval, paired_gain
from unissl.report.label_issues import NO_LABELS, LabelIssues, find_label_issues, neighbour_votes
from unissl.report.load_run import RunRecord
from unissl.report.outliers import Outliers, outliers_by_score
from unissl.report.samples import Samples
from unissl.run.schema import (
    BaselineScore,
    accuracy_interval,
    baseline_scores,
    best_baseline,
    compared_accuracy,
    duplicate_groups,
    evaluated_images,
)

ABSENT = 0.05
"""Fraction of a balanced pool's class size below which a class seems to be absent from the pool."""


@dataclass(frozen=True)
class Headline:
    """Accuracies and their difference; None where unknown."""

    source: Literal["test", "cross-validation", None] = None
    images: int = 0
    """Test images of the classes, or labels that cross-validation left out."""
    folds: int = 0
    accuracy: Interval | None = None
    balanced_accuracy: float | None = None
    compared: float | None = None
    """Accuracy that is compared with the baselines: on the test images; without any, on the folds."""
    baselines: Sequence[BaselineScore] = ()
    """The labels-only network first, then the simple baselines."""

    @property
    def best_baseline(self) -> BaselineScore | None:
        """The most accurate baseline, over which the gain is given."""
        return best_baseline(self.baselines)


@dataclass(frozen=True)
class ReportData:
    """A finished run and what the report derives from it. The true labels of the pool are not used."""

    record: RunRecord
    headline: Headline = Headline()
    samples: Samples | None = None
    """None if the images are not available."""
    outliers: Outliers | None = None
    """In the unlabelled pool; None without a pool."""
    label_issues: LabelIssues = NO_LABELS
    bins: Sequence[Bin] = ()
    """Accuracy by confidence on the test images."""
    calibration_error: float | None = None
    no_images_reason: str = ""
    """Why there are no samples."""

    @classmethod
    def of(cls, record: RunRecord, samples: Samples | None, no_images_reason: str = "") -> Self:
        bins, error = calibration(record)
        issues, outliers = NO_LABELS, None
        if samples is not None:
            absent = absent_classes(record.summary.get("pool", {}).get("predicted", []))
            issues, outliers = check_labels(samples, absent), samples.outliers
        if outliers is None and record.pool is not None:
            outliers = outliers_by_score(record.pool["outlier_score"], record.pool["class_index"])
        return cls(record, headline(record), samples, outliers, issues, bins, error, no_images_reason)

    @property
    def summary(self) -> Mapping[str, Any]:
        return self.record.summary

    @property
    def names(self) -> list[str]:
        return self.record.names

    @property
    def predicted(self) -> Sequence[int]:
        """Images of the pool by predicted class; empty without a pool."""
        return list(self.summary.get("pool", {}).get("predicted", []))

    @cached_property
    def skipped(self) -> list[tuple[str, list[str]]]:
        """Reasons with the files that were left out for them."""
        return group_skipped_files(self.summary.get("skipped", []))

    @property
    def image_issues(self) -> Sequence[Mapping[str, Any]]:
        return list(self.summary.get("image_issues", []))

    @cached_property
    def duplicates(self) -> Sequence[DuplicateGroup]:
        return duplicate_groups(self.summary)

    @property
    def accuracy_curve(self) -> list[float]:
        """Test accuracies during training; distillation is a training of its own and not part of it."""
        evaluations = [line for line in self.record.metrics if line["kind"] == "eval" and "student" not in line]
        return [line["accuracy"] for line in evaluations if "accuracy" in line]


def headline(record: RunRecord) -> Headline:
    """From the test images; without any, from cross-validation; without that, no accuracy."""
    summary, accuracy, images = record.summary, accuracy_interval(record.summary), evaluated_images(record.summary)
    if accuracy is None:
        return Headline(images=images)
    is_test = "accuracy" in summary
    return Headline(
        "test" if is_test else "cross-validation",
        images,
        summary.get("cross_validation", {}).get("folds", 0),
        accuracy,
        (summary if is_test else summary["cross_validation"])["balanced_accuracy"],
        compared_accuracy(summary),
        [*_labels_only(record), *baseline_scores(summary)],
    )


def _labels_only(record: RunRecord) -> list[BaselineScore]:
    """The labels-only network, if the run has one. The interval of the gain is paired over the same images, so that the
    difficulty of the images does not widen it."""
    accuracy = compared_accuracy(record.summary)
    baseline = None if record.baseline is None else compared_accuracy(record.baseline.summary)
    if record.baseline is None or baseline is None or accuracy is None:
        return []
    ours, theirs, interval = record.predictions, record.baseline.predictions, None
    if ours is not None and theirs is not None and ours.comparable(theirs):
        interval = paired_gain(ours.correct, theirs.correct)
    return [BaselineScore("labels-only", baseline, accuracy - baseline, interval)]


def absent_classes(predicted: Sequence[int]) -> list[int]:
    """Classes that are predicted for (nearly) no image of the pool, if the pool is large enough to tell."""
    pool, num_classes = sum(predicted), len(predicted)
    if pool < 5 * num_classes:
        return []
    return [c for c, count in enumerate(predicted) if count < ABSENT * pool / num_classes]


def group_skipped_files(skipped: Sequence[Mapping[str, str]]) -> list[tuple[str, list[str]]]:
    """Files by reason, the largest first; what differs from file to file, in brackets or numbers, is ignored. A single
    file with a rare reason is thus not hidden by a thousand others."""
    groups: dict[str, tuple[str, list[str]]] = {}
    for item in skipped:
        kind = re.sub(r"\(.*?\)|\d+", "", item["reason"])
        groups.setdefault(kind, (item["reason"], []))[1].append(item["file"])
    return sorted(groups.values(), key=lambda group: -len(group[1]))


def check_labels(samples: Samples, absent: Sequence[int]) -> LabelIssues:
    votes = None
    if samples.pool_predictions is not None:
        votes = neighbour_votes(samples.features, samples.pool_features, samples.pool_predictions.probs)
    return find_label_issues(samples.labels, samples.predictions.probs, votes, absent)


def calibration(record: RunRecord) -> tuple[list[Bin], float | None]:
    """Accuracy by confidence on the test images, and the expected calibration error; where a calibrator was fitted, the
    error is the cross-fitted one of the summary."""
    predictions = record.predictions
    if predictions is None or predictions.confidence is None:
        return [], None
    bins = reliability(predictions.confidence, predictions.correct)
    stored = record.summary.get("calibration")
    return bins, calibration_error(bins) if stored is None else float(stored["ece_after"])
