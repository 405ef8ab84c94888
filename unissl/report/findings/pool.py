"""Findings from the predictions for the unlabelled pool. Its true labels are not used."""

from __future__ import annotations

import numpy as np

from unissl.report.data import ReportData, absent_classes
from unissl.report.findings import Finding, finding
from unissl.report.formatting import listing, percent, signed
from unissl.report.outliers import TAIL
from unissl.training.health import is_collapsed

MAX_OUTLIERS = 0.2
"""Fraction of high outlier scores above which the model, not the images, is the likely cause."""


def has_collapsed(data: ReportData) -> bool:
    """Whether the predictions collapsed; a pool of less than two images per class is too small to tell."""
    return sum(data.predicted) >= 2 * len(data.names) and is_collapsed(data.predicted)


@finding
def collapse(data: ReportData) -> Finding | None:
    if not has_collapsed(data):
        return None
    counts, top = data.predicted, int(np.argmax(data.predicted))
    used = sum(count > 0 for count in counts)
    return Finding(
        "problem",
        "The model has collapsed",
        f"{percent(counts[top] / sum(counts), 0)} of the unlabelled pool is predicted as “{data.names[top]}”, and only "
        f"{used} of {len(counts)} classes are predicted at all.",
        "Do not use these predictions unless the pool really is that one-sided. Label a few more images of every class "
        "and train longer; a lower optim.lr or a milder augment.geometry_scale also helps.",
    )


@finding
def absent_from_pool(data: ReportData) -> Finding | None:
    absent = absent_classes(data.predicted)
    if not absent or has_collapsed(data):
        return None
    count, one = sum(data.predicted[c] for c in absent), len(absent) == 1
    return Finding(
        "notice",
        f"The pool seems not to contain {listing([data.names[c] for c in absent])}",
        f"{count or 'None'} of {sum(data.predicted):,} unlabelled images {'is' if count == 1 else 'are'} predicted as "
        f"{'this class' if one else 'these classes'}.",
        f"If the pool does contain {'it' if one else 'them'}, label some more images; otherwise nothing is wrong.",
    )


@finding
def possible_outliers(data: ReportData) -> Finding | None:
    """More outliers than chance explains."""
    outliers = data.outliers
    if outliers is None or not outliers.exceed_chance:
        return None
    count, fraction = outliers.count, outliers.count / len(outliers.score)
    if not outliers.by_features and fraction > MAX_OUTLIERS:
        return Finding(
            "notice",
            f"The model is not confident about {percent(fraction, 0)} of the pool",
            "Either it has learnt too little, or much of the pool is out of distribution.",
            "Train longer and label a few more images; “Possible outliers” shows the highest outlier scores.",
        )
    reason = (
        f"Only {percent(TAIL, 0)} of the labelled images are that far from every class; hard examples are among them."
        if outliers.by_features
        else "They fit no class well: they are out of distribution, or hard examples."
    )
    return Finding(
        "notice",
        f"{count:,} unlabelled images may be outliers",
        f"That is {percent(fraction, 0)} of the pool. {reason}",
        "Check them under “Possible outliers”. Remove images of other things from the pool; if many show the same "
        "thing, it may deserve a class of its own.",
    )


@finding
def gain_over_baseline(data: ReportData) -> Finding | None:
    """A baseline that is better than the shipped classifier, or a gain that may be chance."""
    best = data.headline.best_baseline
    if best is None:
        return None
    interval = best.interval
    if best.gain < 0 and (interval is None or interval.high < 0):
        return Finding(
            "problem",
            f"The baseline {best.name} is better",
            f"Gain over it: {signed(best.gain)} points.",
            "More labels per class help most. A longer run, milder augmentation (augment.geometry_scale) or a pool "
            "with fewer outliers may change this.",
        )
    if interval is not None and interval.low <= 0:
        return Finding(
            "notice",
            f"The gain over the best baseline, {best.name}, may be chance",
            f"Its 95 % interval is {signed(interval.low)} to {signed(interval.high)} points.",
            "More test images (--test) would narrow the interval; a longer run may gain more.",
        )
    return None
