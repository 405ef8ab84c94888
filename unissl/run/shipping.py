"""Which classifier a run ships: the method's, unless the labels show that a simple baseline is better.

The evidence is cross-validation over the labels. Test labels are never part of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unissl.augment.feature_views import FeatureViews
from unissl.baselines import LinearClassifier, SimpleClassifier, choose_strength, fit_simple_baselines
from unissl.evaluation.intervals import paired_gain
from unissl.evaluation.metrics import score
from unissl.evaluation.predictions import Predictions
from unissl.run.cross_validation import CrossValidated, confidences
from unissl.run.folds import Positions, without_labels
from unissl.run.inputs import RunInputs
from unissl.types import UNLABELLED, Bools, Split

MAX_P_VALUE = 0.05
"""Level of the test by which a baseline has to be better than the method in cross-validation to be shipped, over all
baselines. The method was better on the collections that it was developed on, and few labels are weak evidence against
that."""
BLOCK = 4096
CHANCE = ", a difference that may be chance"
NO_EVIDENCE = "there was no cross-validation over the labels, so nothing shows that a baseline is better"

Classes = dict[str, Positions]
"""Predicted classes (n,) by the name of a baseline."""


@dataclass(frozen=True)
class Baselines:
    """The simple baselines of a run, and their predictions."""

    classifiers: Mapping[str, SimpleClassifier]
    held_out: Mapping[str, CrossValidated]
    """For the labels that cross-validation leaves out."""
    test: Classes
    """For the test images."""


@dataclass(frozen=True)
class Shipped:
    """The name of the shipped classifier, the reason, and, where it is a baseline, the classifier itself."""

    name: str
    reason: str
    baseline: LinearClassifier | None = None

    def to_summary(self) -> dict[str, str]:
        return {"classifier": self.name, "reason": self.reason}


def fit_baselines(inputs: RunInputs) -> Baselines | None:
    """The simple baselines where a run compares itself with them."""
    views = inputs.train_views
    if not inputs.config.compares_baselines or not isinstance(views, FeatureViews):
        return None
    split = inputs.training_split
    features = clean_features(views, np.concatenate([split.labelled, split.unlabelled]))
    given = features[: len(split.labelled)]
    # One strength for all refits: chosen with the labels that a refit leaves out, which can only favour the baseline.
    grouped = inputs.dataset.train.groups is not None
    strength = choose_strength(given, split.labels, split.num_classes, inputs.folds if grouped else None)
    classifiers = fit_simple_baselines(features, labels_of(split), split.num_classes, strength)
    labels = len(split.labelled)
    held_out = {name: CrossValidated(np.full(labels, -1, dtype=np.int64), np.zeros(labels)) for name in classifiers}
    for positions in inputs.folds:
        kept = without_labels(split, positions, inputs.dataset.train.groups)
        rows = np.concatenate([kept.labelled, kept.unlabelled])
        refitted = fit_simple_baselines(clean_features(views, rows), labels_of(kept), split.num_classes, strength)
        x = clean_features(views, split.labelled[positions])
        for name, classifier in refitted.items():
            preds = Predictions(classifier.logits(x).softmax(-1).numpy())
            held_out[name].predicted[positions] = preds.classes
            held_out[name].confidence[positions] = confidences(preds)
    test: Classes = {}
    if inputs.test_views is not None:
        assert isinstance(inputs.test_views, FeatureViews)
        x = clean_features(inputs.test_views, np.arange(len(inputs.test_views)))
        test = {name: classifier.logits(x).argmax(1).numpy() for name, classifier in classifiers.items()}
    return Baselines(classifiers, held_out, test)


def clean_features(views: FeatureViews, rows: Positions) -> Tensor:
    """Scaled features (n, D) of the clean views of some rows."""
    blocks = [views("none", rows[start : start + BLOCK]).cpu() for start in range(0, len(rows), BLOCK)]
    return torch.cat(blocks)


def labels_of(split: Split) -> Positions:
    """Labels (n,) of the labelled and unlabelled rows, in that order."""
    return np.concatenate([split.labels, np.full(len(split.unlabelled), UNLABELLED)])


def choose_classifier(method: str, predicted: Positions | None, truth: Positions, baselines: Baselines) -> Shipped:
    """The classifier to ship, from cross-validated predictions (n,) of the method, -1 if a label was never left out."""
    if predicted is None or not (predicted >= 0).any():
        return Shipped(method, NO_EVIDENCE)
    tested = predicted >= 0
    right = predicted[tested] == truth[tested]
    candidates = {
        name: baselines.held_out[name].predicted[tested] == truth[tested]
        for name, classifier in baselines.classifiers.items()
        if isinstance(classifier, LinearClassifier)
    }
    best = max(candidates, key=lambda name: candidates[name].mean())
    figures = f"cross-validated accuracy {{}} against {{}} of {{}}, over {tested.sum()} labels"
    if sign_test(candidates[best], right) * len(candidates) <= MAX_P_VALUE:
        classifier = baselines.classifiers[best]
        assert isinstance(classifier, LinearClassifier)
        reason = figures.format(f"{candidates[best].mean():.3f}", f"{right.mean():.3f}", method)
        return Shipped(best, reason, classifier)
    reason = figures.format(f"{right.mean():.3f}", f"{candidates[best].mean():.3f}", best)
    return Shipped(method, reason + (CHANCE if candidates[best].mean() > right.mean() else ""))


def sign_test(right: Bools, other: Bools) -> float:
    """One-sided p-value of the first of two classifiers being more accurate on the same images (n,).

    Exact, since few labels differ: a normal approximation would be convinced by three.
    """
    better, worse = int((right & ~other).sum()), int((other & ~right).sum())
    differing = better + worse
    return sum(math.comb(differing, count) for count in range(better, differing + 1)) / (1 << differing)


def predict_baseline(classifier: LinearClassifier, views: FeatureViews, rows: Positions) -> Predictions:
    return Predictions(classifier.logits(clean_features(views, rows)).softmax(-1).float().numpy())


def baselines_summary(
    baselines: Classes, truth: Positions, predicted: Positions, num_classes: int
) -> dict[str, dict[str, float]]:
    """Accuracy and balanced accuracy of each baseline, and the gain of the shipped classifier over it with its 95 %
    interval.

    All classes are (n,): ``predicted`` of the shipped classifier for n test images or, without any, for the labels
    that cross-validation left out; negative where there is none.
    """
    known = (predicted >= 0) & (truth >= 0)
    if not known.any():
        return {}
    right = predicted[known] == truth[known]
    table = {}
    for name, classes in baselines.items():
        scores = score(truth[known], classes[known], num_classes)
        gain = paired_gain(right, classes[known] == truth[known])
        table[name] = {
            "accuracy": scores["accuracy"],
            "balanced_accuracy": scores["balanced_accuracy"],
            "gain": gain.value,
            "gain_low": gain.low,
            "gain_high": gain.high,
        }
    return table
