"""How good the model is, and what the pool was worth: the first thing on the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unissl.report.intervals import Interval, accuracy_interval, paired_gain
from unissl.report.load_run import RunRecord


@dataclass(frozen=True)
class Headline:
    """Accuracies side by side and their difference. What is not known is None."""

    source: Literal["test", "cross-validation", None] = None
    images: int = 0
    """Test images of known classes, or labels that were left out in turn."""
    folds: int = 0
    accuracy: Interval | None = None
    balanced: float | None = None
    floor: float | None = None
    """Accuracy of labels-only."""
    gain: float | None = None
    gain_interval: Interval | None = None


def headline(record: RunRecord) -> Headline:
    """From the test images; without any, from cross-validation over the labels; without that, nothing."""
    summary = record.summary
    source: Literal["test", "cross-validation"] = "test" if "accuracy" in summary else "cross-validation"
    accuracy = _accuracy(record)
    if accuracy is None:
        return Headline(images=summary["test_images"] - summary.get("ood_test_images", 0))
    floor = None if record.reference is None else _accuracy(record.reference)
    balanced = summary["balanced_accuracy"] if source == "test" else summary["cross_validation"]["balanced_accuracy"]
    return Headline(
        source,
        _images(record),
        summary.get("cross_validation", {}).get("folds", 0),
        accuracy,
        balanced,
        None if floor is None else floor.value,
        None if floor is None else accuracy.value - floor.value,
        _gain(record),
    )


def _images(record: RunRecord) -> int:
    summary = record.summary
    if "accuracy" in summary:
        return int(summary["test_images"] - summary.get("ood_test_images", 0))
    return int(summary["cross_validation"]["labels"])


def _accuracy(record: RunRecord) -> Interval | None:
    summary = record.summary
    if "accuracy" in summary:
        images = _images(record)
        share = summary["accuracy"]["last"]
        return accuracy_interval(round(share * images), images)._replace(value=share)
    if "cross_validation" in summary:
        return Interval(*(summary["cross_validation"][name] for name in ("accuracy", "low", "high")))
    return None


def _gain(record: RunRecord) -> Interval | None:
    """Paired over the same images, so that what is hard for both does not count as uncertainty."""
    ours, theirs = record.answers, None if record.reference is None else record.reference.answers
    if ours is None or theirs is None or not ours.comparable(theirs):
        return None
    return paired_gain(ours.right, theirs.right)
