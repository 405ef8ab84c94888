"""Probabilities that mean what they say: one temperature, fitted on labels that no loss has seen.

Networks are often surer than they are right. Dividing all logits by one number T changes no answer and brings the
probabilities closer to how often the answers are right (Guo et al., 2017, https://arxiv.org/abs/1706.04599). How close
is measured on labels that the temperature was not fitted on: each half is scaled by what the other half says. Only
then is T fitted on all of them, and only if it helped is it shipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import log_softmax

BINS = 10
"""Equal intervals of confidence in the reliability diagram."""
MIN_LABELS = 50
"""With fewer labels than this the temperature would be a guess, and stays 1."""
COLDEST, HOTTEST = 0.1, 10.0

Floats = npt.NDArray[np.floating[Any]]
Labels = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Bin:
    """Images of similar confidence: their mean confidence, the share of right answers, their number."""

    confidence: float
    accuracy: float
    images: int


def reliability(confidence: Floats, right: Bools) -> list[Bin]:
    """Images grouped by confidence in equal intervals (low, high]; empty ones are left out."""
    place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    groups = [place == b for b in range(BINS)]
    return [Bin(float(confidence[g].mean()), float(right[g].mean()), int(g.sum())) for g in groups if g.any()]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Expected calibration error: the mean gap between confidence and accuracy, each group by its size."""
    return sum(b.images * abs(b.accuracy - b.confidence) for b in bins) / sum(b.images for b in bins)


def log_probabilities(probs: Floats) -> npt.NDArray[np.float64]:
    """Logits, but for a constant per row, of probabilities (n, C); one that has become 0 counts as the smallest
    float32."""
    return np.log(np.maximum(np.asarray(probs, dtype=np.float64), np.finfo(np.float32).tiny))


def apply_temperature(probs: Floats, temperature: float) -> npt.NDArray[np.float64]:
    """The probabilities (n, C) that the same logits have at another temperature."""
    scaled: npt.NDArray[np.float64] = np.exp(log_softmax(log_probabilities(probs) / temperature, axis=1))
    return scaled


def negative_log_likelihood(probs: Floats, labels: Labels, temperature: float = 1.0) -> float:
    """-log p of the true class, mean over the rows."""
    log_probs = log_softmax(log_probabilities(probs) / temperature, axis=1)
    return float(-log_probs[np.arange(len(labels)), labels].mean())


def fit_temperature(probs: Floats, labels: Labels) -> float:
    """The temperature in [0.1, 10] with the least negative log-likelihood of labels (n,) under probs (n, C).

    The likelihood is convex in 1/T, so its slope changes sign once, and the place is found between brackets. Where
    every answer is right, the likelihood would have T as small as can be; such labels say nothing about errors, and T
    is 1.
    """
    logits = log_probabilities(probs)
    if (logits.argmax(1) == labels).all():
        return 1.0
    of_truth = logits[np.arange(len(labels)), labels].mean()

    def slope(inverse: float) -> float:
        weights = np.exp(log_softmax(inverse * logits, axis=1))
        return float((weights * logits).sum(1).mean() - of_truth)

    hottest, coldest = 1 / HOTTEST, 1 / COLDEST
    if slope(hottest) >= 0:
        return HOTTEST
    if slope(coldest) <= 0:
        return COLDEST
    return 1 / float(brentq(slope, hottest, coldest, xtol=1e-10))


@dataclass(frozen=True)
class Calibration:
    """What the labels say about the probabilities. Both ``after`` values are of labels that had no part in the fit."""

    temperature: float
    labels: int
    ece: float
    """Expected calibration error as the network left the method, temperature 1."""
    ece_after: float
    nll: float
    nll_after: float
    note: str
    """Why the temperature is what it is."""


def calibrate(probs: Floats, labels: Labels) -> Calibration:
    """Temperature for probs (n, C) of n images whose labels no loss has seen, and what it is worth on unseen ones."""
    if not len(labels):
        raise ValueError("no labels to calibrate with")
    before = _error(probs, labels), negative_log_likelihood(probs, labels)
    if len(labels) < MIN_LABELS:
        return _unchanged(before, len(labels), f"fewer than {MIN_LABELS} held-out labels, so nothing was fitted")
    crossed = _cross_fitted(probs, labels)
    after = _error(crossed, labels), negative_log_likelihood(crossed, labels)
    if after[1] >= before[1]:
        return _unchanged(before, len(labels), "no temperature did better on labels that it was not fitted on")
    note = "fitted on all held-out labels; the errors after it are of halves scaled by the other half"
    return Calibration(fit_temperature(probs, labels), len(labels), before[0], after[0], before[1], after[1], note)


def _unchanged(before: tuple[float, float], labels: int, note: str) -> Calibration:
    return Calibration(1.0, labels, before[0], before[0], before[1], before[1], note)


def _error(probs: Floats, labels: Labels) -> float:
    return calibration_error(reliability(probs.max(1), probs.argmax(1) == labels))


def _cross_fitted(probs: Floats, labels: Labels) -> npt.NDArray[np.float64]:
    """Each half at the temperature that the other half asks for; which rows go together is drawn once for all."""
    order = np.random.default_rng(0).permutation(len(labels))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    made = np.empty(probs.shape)
    for ours, theirs in (halves, halves[::-1]):
        made[ours] = apply_temperature(probs[ours], fit_temperature(probs[theirs], labels[theirs]))
    return made
