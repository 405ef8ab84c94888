"""Diagnostics that need the true labels of the pool. The only module that may read them; nothing reaches training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unissl.batches import Batches
from unissl.evaluation.graph_diagnostics import Group, RandomWalk, embed_pool, neighbours, order_of_pool, votes, walk_of
from unissl.evaluation.metrics import accuracy
from unissl.evaluation.predictions import Forward
from unissl.methods.base import Method
from unissl.types import OOD, UNLABELLED, Bools, Labels

Floats = npt.NDArray[np.float64]
DIGITS = 5
"""Decimals of the fractions in metrics.jsonl."""


def pseudo_label_quality(truth: Labels, predicted: Labels, num_classes: int) -> dict[str, Any]:
    """Histogram of predicted classes over the pool, split into right and wrong if the truth is known.

    Without truth (a user's own folder) ``truth_known`` is False and only the histogram is returned. Any class predicted
    for an OOD image is wrong; ``ood`` counts these images.
    """
    histogram = np.bincount(predicted, minlength=num_classes)
    if (truth == UNLABELLED).any():
        return {"truth_known": False, "predicted": histogram.tolist()}
    right = np.bincount(predicted[truth == predicted], minlength=num_classes)
    return {
        "truth_known": True,
        "accuracy": accuracy(truth, predicted),
        "predicted": histogram.tolist(),
        "true_positives": right.tolist(),
        "false_positives": (histogram - right).tolist(),
        "truth": np.bincount(truth[truth != OOD], minlength=num_classes).tolist(),
        "ood": int((truth == OOD).sum()),
    }


def pool_record(
    forward: Forward, method: Method, batches: Batches, rows: Labels, truth: Labels, step: int
) -> dict[str, Any]:
    """Quality of the head's predictions and of relations at this step, by the live weights on weak views; empty if the
    truth is unknown. ``rows`` are the rows of the pool and ``truth`` their classes."""
    if not len(rows) or (truth == UNLABELLED).any():
        return {}
    order = order_of_pool(len(rows))
    groups = embed_pool(forward, method, batches, rows[order], step)
    pseudo = torch.cat([group.pseudo for group in groups]).cpu().numpy()
    classes = method.info.num_classes
    quality = pseudo_label_quality(truth[order], pseudo, classes)
    return {
        **{name: quality[name] for name in ("accuracy", "predicted", "true_positives", "truth", "ood")},
        "f1": macro_f1(truth[order], pseudo),
        **relation_quality(groups, truth[order], walk_of(method), classes),
    }


def macro_f1(truth: Labels, predicted: Labels) -> float:
    """Mean over the classes that occur of the harmonic mean of precision and recall."""
    from sklearn.metrics import f1_score  # slow to import

    present = np.unique(truth[truth != OOD])
    return float(f1_score(truth, predicted, labels=present, average="macro", zero_division=0.0))


def relation_quality(groups: Sequence[Group], truth: Labels, walk: RandomWalk, num_classes: int) -> dict[str, Any]:
    """Whether relations between images correct pseudo-labels. The rule is this package's; the paper defines none.

    Each image gets a vote of its neighbours' pseudo-labels, weighted by G without the image itself. ``corrected`` is
    the fraction of wrongly pseudo-labelled images that the vote gets right (the correction ratio), ``spoiled`` the
    fraction of rightly labelled ones that it gets wrong, ``vote_accuracy`` the accuracy of the vote; OOD images, which
    no vote can get right, are left out. ``mass_on_majority`` and ``mass_on_own`` are, by true class, the fraction of
    the neighbours' weight on images of the pool's largest class and of the image's own class. None for a fraction of
    nothing.
    """
    if any(len(group.pseudo) < 2 for group in groups):
        return {}
    known = truth != OOD
    pseudo = torch.cat([group.pseudo for group in groups]).cpu().numpy()
    voted = votes(groups, walk, num_classes).cpu().numpy()
    right_before, right_after = (pseudo == truth)[known], (voted == truth)[known]
    mass = class_mass(groups, truth, walk, num_classes)
    counts = np.bincount(truth[known], minlength=num_classes)
    present = counts > 0
    majority = mass[:, int(counts.argmax())]
    return {
        "vote_accuracy": _fraction(right_after),
        "corrected": _fraction(right_after[~right_before]),
        "spoiled": _fraction(~right_after[right_before]),
        "mass_on_majority": _rounded(majority, present),
        "mass_on_own": _rounded(mass.diagonal(), present),
    }


def class_mass(groups: Sequence[Group], truth: Labels, walk: RandomWalk, num_classes: int) -> Floats:
    """Fraction of the weight of an image's neighbours on each class: mean over the images of a class, (C, C)."""
    mass, counts, start = np.zeros((num_classes, num_classes)), np.zeros(num_classes), 0
    for group in groups:
        labels = truth[start : start + len(group.pseudo)]
        start += len(labels)
        known = np.flatnonzero(labels != OOD)
        weights = neighbours(group.nodes, walk).cpu().numpy()[np.ix_(known, known)]
        one_hot = np.eye(num_classes)[labels[known]]
        mass += one_hot.T @ weights @ one_hot
        counts += one_hot.sum(0)
    return np.asarray(mass / np.maximum(counts, 1)[:, None])


def _fraction(flags: Bools) -> float | None:
    return round(float(flags.mean()), DIGITS) if len(flags) else None


def _rounded(values: Floats, present: Bools) -> list[float | None]:
    return [round(float(value), DIGITS) if occurs else None for value, occurs in zip(values, present, strict=True)]
