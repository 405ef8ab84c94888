"""What the classes that were given to the pool say about the run. The truth of the pool is not looked at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unissl.report.findings.finding import Finding
from unissl.report.formatting import listing, percent, signed
from unissl.report.intervals import Interval
from unissl.report.outliers import TAIL, Outliers

LONELY = 0.05
"""Share of an even mix below which the pool seems not to contain a class."""
ONE_SIDED = 0.95
"""Share of one class above which a model seems to know no other."""
UNSURE = 0.2
"""Share of the pool above which so many high outlier scores speak against the model and not against the images."""


def collapse(predicted: Sequence[int], names: Sequence[str]) -> Finding | None:
    """Nearly everything in one class, or most classes never given."""
    pool, used = sum(predicted), sum(count > 0 for count in predicted)
    top = int(np.argmax(predicted))
    share = predicted[top] / pool
    if pool < 2 * len(names) or (used > max(1, len(names) // 3) and share < ONE_SIDED):
        return None
    return Finding(
        "problem",
        "The model has collapsed",
        f"{percent(share, 0)} of the pool is called “{names[top]}”, and {used} of {len(names)} classes occur.",
        "Do not use these labels unless the pool really is that one-sided. Label a few more images of every class, and "
        "train longer; a lower optim.lr or a milder augment.geometry_scale also helps.",
    )


def absent_classes(predicted: Sequence[int]) -> list[int]:
    """Classes that (nearly) no image of the pool was given, if the pool is large enough for that to mean something."""
    pool, classes = sum(predicted), len(predicted)
    if pool < 5 * classes:
        return []
    return [c for c, count in enumerate(predicted) if count < LONELY * pool / classes]


def missing_from_pool(absent: Sequence[int], predicted: Sequence[int], names: Sequence[str]) -> Finding | None:
    if not absent:
        return None
    found = sum(predicted[c] for c in absent)
    one = len(absent) == 1
    return Finding(
        "notice",
        f"The pool seems not to contain {listing([names[c] for c in absent])}",
        f"{found or 'None'} of {sum(predicted):,} unlabelled images {'was' if found == 1 else 'were'} given "
        f"{'this class' if one else 'these classes'}.",
        f"If you know that there are such images, label some more of {'it' if one else 'them'}; if not, all is well.",
    )


def unlike_the_rest(outsiders: Outliers) -> Finding | None:
    """Images that look like none of the classes, if there are more of them than any pool has."""
    if not outsiders.stand_out:
        return None
    count, share = outsiders.count, outsiders.count / len(outsiders.score)
    if not outsiders.by_vectors and share > UNSURE:
        return Finding(
            "notice",
            f"The model is unsure about {percent(share, 0)} of the pool",
            "It gives these images no class with any conviction, so it has learnt too little, or much of the pool is "
            "something else.",
            "Train longer and label a few more images; see “Perhaps none of these” for the worst.",
        )
    hard = (
        f"Of the labelled images only {percent(TAIL, 0)} lie so far from every class; hard cases are among them."
        if outsiders.by_vectors
        else "They fit no class well: other things, or hard cases."
    )
    return Finding(
        "notice",
        f"{count:,} unlabelled images may be none of the classes",
        f"That is {percent(share, 0)} of the pool. {hard}",
        "Look at them under “Perhaps none of these”, the strangest first. Other things are best taken out of the pool; "
        "if many show one and the same thing, it may deserve a class.",
    )


def worth_of_pool(gain: float, interval: Interval | None) -> Finding | None:
    """Labels-only doing better, or no gain beyond chance."""
    if gain < 0 and (interval is None or interval.high < 0):
        return Finding(
            "problem",
            "Labels-only does better",
            f"With the unlabelled pool the accuracy changes by {signed(gain)} points.",
            "Use the model in the folder labels-only for now. A longer run, milder augmentation (augment.geometry_scale) "
            "or a pool with fewer images of other things may turn this round.",
        )
    if interval is not None and interval.low <= 0:
        return Finding(
            "notice",
            "The gain from the pool may be chance",
            f"Between {signed(interval.low)} and {signed(interval.high)} points are possible.",
            "More images whose class is known (--test) would tell; a longer run may gain more.",
        )
    return None
