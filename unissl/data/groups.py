"""Groups of images that belong together, such as a series, a patient or a burst: folds and hold-outs never split one.

A group is a number per image; an image without a group is a group of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unissl.errors import UserError, shortened
from unissl.types import Rows


def number_groups(names: Sequence[str | None]) -> Rows:
    """A number for each image: equal for equal names; every None gets one of its own."""
    numbers: dict[str, int] = {}
    known = [-1 if name is None else numbers.setdefault(name, len(numbers)) for name in names]
    single = iter(range(len(numbers), len(numbers) + len(known)))
    return np.array([next(single) if number < 0 else number for number in known], dtype=np.int64)


def require_separable(names: Sequence[str | None], labels: Rows, class_names: Sequence[str]) -> None:
    """Refuse groups where no class has labels in two of them: nothing could be held out."""
    groups = number_groups(names)
    if all(len(np.unique(groups[labels == c])) < 2 for c in range(len(class_names))):
        row = int(np.flatnonzero(labels >= 0)[0])
        raise UserError(
            f"The group {shortened(names[row] or '')!r} holds all labels of class {class_names[labels[row]]!r}, and so"
            " it is for every class, so nothing can be held out; label images of at least two groups per class, or"
            " leave the groups out."
        )


def hold_out_groups(labels: Rows, groups: Rows, count: int, min_train: int) -> Rows:
    """Labelled rows of whole groups, ascending, at most ``count`` of them and close to the class distribution.

    Every class keeps ``min_train`` labels, or all it has. The rows depend on labels and groups only.
    """
    labelled = np.flatnonzero(labels >= 0)
    of_group, counts = _count_labels(labels[labelled], groups[labelled])
    totals = counts.sum(axis=0)
    quota, left = np.ceil(count * totals / totals.sum()), np.maximum(totals - min_train, 0)
    chosen: list[int] = []
    for limit in (np.minimum(quota, left), left):  # first those that fit the class distribution
        for group in np.random.RandomState(0).permutation(len(counts)).tolist():
            taken = counts[[*chosen, group]].sum(axis=0)
            if group not in chosen and taken.sum() <= count and (taken <= limit).all():
                chosen.append(group)
    if not chosen:
        raise UserError(
            f"data.test_holdout = {count} cannot be kept: whole groups are held out, and every group has more labels or"
            f" would leave a class with fewer than {min_train}; hold out more images, or label images of more groups."
        )
    return labelled[np.isin(of_group, chosen)]


def _count_labels(labels: Rows, groups: Rows) -> tuple[Rows, Rows]:
    """The position of each label's group among the groups, and the labels of each group by class, (groups, classes)."""
    classes, position = np.unique(labels, return_inverse=True)
    members, of_group = np.unique(groups, return_inverse=True)
    counts = np.zeros((len(members), len(classes)), dtype=np.int64)
    np.add.at(counts, (of_group, position), 1)
    return of_group, counts


def deal_groups(labels: Rows, groups: Rows, folds: int, generator: np.random.Generator) -> list[list[int]]:
    """Positions of the labels in each fold: whole groups, each to the fold that has the fewest labels of its classes.

    A group stays out of all folds if a class would otherwise have no label outside a fold.
    """
    of_group, counts = _count_labels(labels, groups)
    totals, dealt = counts.sum(axis=0), np.zeros((folds, counts.shape[1]), dtype=np.int64)
    dealt_to: dict[int, int] = {}
    order = generator.permutation(len(counts))
    for group in order[np.argsort(-counts[order].sum(axis=1), kind="stable")].tolist():
        after = dealt + counts[group]
        possible = np.flatnonzero(((after < totals) | (counts[group] == 0)).all(axis=1))
        if len(possible):
            crowding = ((after / totals) ** 2 - (dealt / totals) ** 2)[possible].sum(axis=1)
            fold = int(possible[np.lexsort((dealt[possible].sum(axis=1), crowding))[0]])
            dealt[fold] += counts[group]
            dealt_to[group] = fold
    return [[i for i, group in enumerate(of_group.tolist()) if dealt_to.get(group) == fold] for fold in range(folds)]
