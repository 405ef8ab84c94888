"""Outliers: images of the pool that may belong to no class.

Training on the pool treats every image in it as one of a class, so the confidence of the model is a poor outlier
score. Features of a frozen backbone are not biased that way. There the outlier score of an image is its cosine
distance to the nearest mean of the labelled images of a class. An image is flagged if it is farther than nine in ten
labelled images, each of which is measured without its own part in the mean. The page always shows the images with the
highest scores. A finding reports outliers only if more of the pool is flagged than chance explains: 40 labels may well
set a threshold that flags a fifth of a pool without outliers.

Measured on Caltech-101 with the default backbone at 128 pixels, 468 background photos among 6,741 unlabelled ones, 4
labels per class, three splits: 11 % of the pool is flagged, with 63 % of the background among it, and 40 % of the
flagged images are background; of the 48 highest scores 87 % are (AUROC 0.91; on the first split 0.90, against 0.85 for
one minus SAGE's confidence). Without background 7 % are flagged. With the first ten classes alone and 6 % of
background, 91 % of it is flagged, and two thirds of the flagged images are background. With 2 labels per class 47 % of
the background is flagged. Score and threshold were chosen on these very splits, so other collections may do worse.

Without such features, the outlier score of the method decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta
from sklearn.preprocessing import normalize

from unissl.inference.review import EVEN_ODDS
from unissl.types import Bools, Floats, Labels

TAIL = 0.1
"""Fraction of the labelled images that are at least as far from every class as a flagged image."""
CONFIDENCE = 0.95
"""Probability that a pool without outliers has no more flagged images than expected."""
MIN_LABELS = 20
"""Labels below which no threshold can be set."""
MAX_HIGH_SCORES = 0.01
"""Fraction of high outlier scores that any pool may have."""


@dataclass(frozen=True)
class Outliers:
    """Outlier score, nearest class and flag of each image of the pool (n,)."""

    score: Floats
    nearest: Labels
    flagged: Bools
    expected: float
    """Fraction of a pool without outliers that may be flagged."""
    by_features: bool

    @property
    def count(self) -> int:
        return int(self.flagged.sum())

    @property
    def exceed_chance(self) -> bool:
        """Whether more images are flagged than in a pool without outliers."""
        return self.count >= 2 and self.count > self.expected * len(self.score)


def outliers_by_score(outlier_score: Floats, classes: Labels) -> Outliers:
    """From the outlier scores of the method and the predicted classes (n,)."""
    return Outliers(outlier_score, classes, outlier_score > EVEN_ODDS, MAX_HIGH_SCORES, by_features=False)


def outliers_by_features(labelled: Floats, labels: Labels, pool: Iterable[Floats], num_classes: int) -> Outliers | None:
    """From features of the labelled images (n, D) and, in blocks, of the pool; None if there are too few labels."""
    labelled = normalize(labelled)
    sums = np.zeros((num_classes, labelled.shape[1]), dtype=np.float32)
    np.add.at(sums, labels, labelled)
    usual = usual_similarity(labelled, labels, sums)
    if len(usual) < MIN_LABELS:
        return None
    threshold = float(np.quantile(usual, TAIL))
    means = normalize(sums)
    similarities = [normalize(block) @ means.T for block in pool]
    similarity = np.concatenate([block.max(1) for block in similarities])
    nearest = np.concatenate([block.argmax(1) for block in similarities]).astype(np.int64)
    return Outliers(1 - similarity, nearest, similarity < threshold, expected_fraction(len(usual)), by_features=True)


def expected_fraction(num_labels: int) -> float:
    """Fraction of a pool without outliers that may be below the threshold that so many labelled images set.

    The threshold is their k-th smallest value, k = 1 + TAIL (n - 1), and the fraction of all images below it has the
    distribution Beta(k, n - k + 1).
    """
    k = 1 + TAIL * (num_labels - 1)
    return float(beta.ppf(CONFIDENCE, k, num_labels - k + 1))


def usual_similarity(labelled: Floats, labels: Labels, sums: Floats) -> Floats:
    """Cosine similarity of each labelled image (n, D) to the nearest class mean, where the mean of its own class leaves
    it out. Images that are alone in their class are left out."""
    cosines = labelled @ normalize(sums).T
    rows = np.arange(len(labels))
    cosines[rows, labels] = (labelled * normalize(sums[labels] - labelled)).sum(1)
    shared = np.bincount(labels, minlength=len(sums))[labels] > 1
    return np.asarray(cosines.max(1)[shared], dtype=np.float32)
