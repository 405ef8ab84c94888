"""What only the truth of the pool can tell. The one place that may look at it; nothing here reaches training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.metrics import f1_score
from torch import Tensor

from unissl.batches import Batches
from unissl.evaluation.graph_diagnostics import Group, RandomWalk, embed_pool, neighbours, order_of_pool, votes, walk_of
from unissl.evaluation.metrics import accuracy
from unissl.methods.base import Method
from unissl.types import OOD, UNLABELLED, Outputs, Prediction

Labels = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
DIGITS = 5
"""Decimals of the shares in the record of a run."""


def pseudo_label_quality(truth: Labels, predicted: Labels, num_classes: int) -> dict[str, Any]:
    """Histogram of predicted classes over the pool, split into right and wrong where the truth is known.

    Without truth (a user's own folder) only the histogram is given, and ``truth_known`` says so. Whatever class is
    given to an image of none of the classes is wrong; ``outside`` counts such images.
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
    answer: Callable[[Tensor], Outputs | Prediction],
    method: Method,
    batches: Batches,
    rows: Labels,
    truth: Labels,
    step: int,
) -> dict[str, Any]:
    """Quality of pseudo-labels and of relations as they are at this step, by the live weights on weak views; empty
    where the truth is not known. ``rows`` are those of the pool and ``truth`` their classes."""
    if not len(rows) or (truth == UNLABELLED).any():
        return {}
    order = order_of_pool(len(rows))
    groups = embed_pool(answer, method, batches, rows[order], step)
    pseudo = torch.cat([group.pseudo for group in groups]).cpu().numpy()
    classes = method.info.num_classes
    quality = pseudo_label_quality(truth[order], pseudo, classes)
    shown = ("accuracy", "predicted", "true_positives", "truth", "ood")
    return {
        **{name: quality[name] for name in shown},
        "f1": macro_f1(truth[order], pseudo),
        **relation_quality(groups, truth[order], walk_of(method), classes),
    }


def macro_f1(truth: Labels, predicted: Labels) -> float:
    """Mean over the classes that occur of the harmonic mean of precision and recall."""
    present = np.unique(truth[truth != OOD])
    return float(f1_score(truth, predicted, labels=present, average="macro", zero_division=0.0))


def relation_quality(groups: Sequence[Group], truth: Labels, walk: RandomWalk, num_classes: int) -> dict[str, Any]:
    """Whether relations between images know better than pseudo-labels. The rule is ours, since the paper gives none.

    Each image hears the pseudo-labels of its neighbours, weighted by G without the image itself. ``corrected`` is the
    share of wrongly pseudo-labelled images that this vote gets right (the correction ratio), ``spoiled`` the share of
    rightly labelled ones that it gets wrong, ``vote_accuracy`` that of the vote; images of none of the classes, which
    no vote can get right, do not count. ``mass_on_majority`` and ``mass_on_own`` are, by true class, how much of the
    neighbours' weight lies on images of the pool's largest class and of the image's own. None where there is nothing to
    take a share of.
    """
    if any(len(group.pseudo) < 2 for group in groups):
        return {}
    known = truth != OOD
    pseudo = torch.cat([group.pseudo for group in groups]).cpu().numpy()
    said = votes(groups, walk, num_classes).cpu().numpy()
    right_before, right_after = (pseudo == truth)[known], (said == truth)[known]
    mass = class_mass(groups, truth, walk, num_classes)
    counts = np.bincount(truth[known], minlength=num_classes)
    present = counts > 0
    majority = mass[:, int(counts.argmax())]
    return {
        "vote_accuracy": _share(right_after),
        "corrected": _share(right_after[~right_before]),
        "spoiled": _share(~right_after[right_before]),
        "mass_on_majority": _rounded(majority, present),
        "mass_on_own": _rounded(mass.diagonal(), present),
    }


def class_mass(groups: Sequence[Group], truth: Labels, walk: RandomWalk, num_classes: int) -> Floats:
    """How much of the weight of an image's neighbours lies on each class: mean over the images of a class, (C, C)."""
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


def _share(flags: npt.NDArray[np.bool_]) -> float | None:
    return round(float(flags.mean()), DIGITS) if len(flags) else None


def _rounded(values: Floats, present: npt.NDArray[np.bool_]) -> list[float | None]:
    return [round(float(value), DIGITS) if there else None for value, there in zip(values, present, strict=True)]
