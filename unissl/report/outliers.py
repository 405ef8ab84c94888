"""Images of the pool that look like none of the classes.

A model that has learnt from the pool has been told that everything in it is of some class, and is a poor witness. The
vectors of a frozen backbone were never told. There an image is compared with the mean of the labelled images of each
class, and it is strange if it is farther from the nearest mean than nine in ten labelled images are, each of these
measured without its own part in the mean. Strange images are shown in any case; that there are outsiders is said only
where more of the pool is strange than the few labelled images, which set the level, let one expect: forty of them may
well set it so that a fifth of a pool without outsiders lies beyond.

Measured on Caltech-101, EfficientNet-Lite0 at 128 pixels, 468 background photos among 6,741 unlabelled ones, 4 labels
per class, three splits: 11 % of the pool is strange, 63 % of the background among it, 40 % of it background; of the 48
strangest 87 % are (AUROC 0.91; on the first split 0.90, against 0.85 for one minus SAGE's confidence). Without
background 7 % are strange. With the first ten classes alone and 6 % of background, 91 % of it is found, and two thirds
of what is found is background. With 2 labels per class it is 47 % of the background. Score and level were chosen on
these very splits, so other collections may do worse.

Where there are no such vectors, the outlier score of the method decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from unissl.report.label_issues import unit

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

TAIL = 0.1
"""Share of the labelled images that lie as far from every class as a strange image."""
SURE = 0.95
"""Probability that a pool of the same kind as the labelled images has fewer of them beyond the level than is said."""
MIN_LABELS = 20
"""With fewer labels than this nobody can say how far is far."""
EVEN = 0.5
"""Outlier score above which an image is more likely than not of none of the classes."""
RARE = 0.01
"""Share of high outlier scores that any pool may have."""


@dataclass(frozen=True)
class Outliers:
    """For each image of the pool how strange it is, the class it is nearest to, and whether it is flagged."""

    score: Floats
    nearest: Labels
    flagged: Bools
    expected: float
    """Share of a pool without outsiders that may be flagged."""
    by_vectors: bool

    @property
    def count(self) -> int:
        return int(self.flagged.sum())

    @property
    def stand_out(self) -> bool:
        """Whether more images are flagged than a pool without outsiders explains."""
        return self.count >= 2 and self.count > self.expected * len(self.score)


def by_score(outlier: Floats, classes: Labels) -> Outliers:
    """What the outlier scores of the method say."""
    return Outliers(outlier, classes, outlier > EVEN, RARE, by_vectors=False)


def by_vectors(labelled: Floats, labels: Labels, pool: Iterable[Floats], num_classes: int) -> Outliers | None:
    """From vectors of the labelled images (n, D) and, in blocks, of the pool; None where labels are too few."""
    own = unit(labelled)
    sums = np.zeros((num_classes, own.shape[1]), dtype=np.float32)
    np.add.at(sums, labels, own)
    usual = usual_closeness(own, labels, sums)
    if len(usual) < MIN_LABELS:
        return None
    level = float(np.quantile(usual, TAIL))
    means = unit(sums)
    parts = [unit(block) @ means.T for block in pool]
    closeness = np.concatenate([part.max(1) for part in parts])
    nearest = np.concatenate([part.argmax(1) for part in parts]).astype(np.int64)
    return Outliers(1 - closeness, nearest, closeness < level, beyond_by_chance(len(usual)), by_vectors=True)


def beyond_by_chance(labels: int) -> float:
    """Share of a pool that may lie beyond the level which so many labelled images set, where both are of one kind.

    The level is their k-th smallest value, k = 1 + TAIL (n - 1), and the share of all images below it has the
    distribution Beta(k, n - k + 1).
    """
    k = 1 + TAIL * (labels - 1)
    return float(beta.ppf(SURE, k, labels - k + 1))


def usual_closeness(own: Floats, labels: Labels, sums: Floats) -> Floats:
    """Cosine of each labelled image with the nearest class mean, its own class's being made without it. Images that
    are alone in their class are left out."""
    cosines = own @ unit(sums).T
    rows = np.arange(len(labels))
    cosines[rows, labels] = (own * unit(sums[labels] - own)).sum(1)
    shared = np.bincount(labels, minlength=len(sums))[labels] > 1
    return np.asarray(cosines.max(1)[shared], dtype=np.float32)
