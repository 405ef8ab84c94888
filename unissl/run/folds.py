"""Folds of the labels for cross-validation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unissl.data.groups import deal_groups
from unissl.types import Labels, Rows, Split

Positions = Rows


def make_folds(labels: Labels, folds: int, seed: int, groups: Rows | None = None) -> list[Positions]:
    """Positions of the labels that each refit leaves out: every label once, stratified by class; with ``groups``, a
    number per label, labels of one group together.

    A class with a single label keeps it in all refits, since a refit without it could not predict the class. Empty
    folds are dropped; fewer than two folds mean no cross-validation.
    """
    if folds < 2:
        return []
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, folds])))
    if groups is not None:
        dealt = [np.array(fold, dtype=np.int64) for fold in deal_groups(labels, groups, folds, generator) if fold]
        return dealt if len(dealt) > 1 else []
    positions: list[list[int]] = [[] for _ in range(folds)]
    for number, label in enumerate(np.unique(labels)):
        of_class = generator.permutation(np.flatnonzero(labels == label))
        if len(of_class) > 1:
            for turn, position in enumerate(of_class):
                positions[(number + turn) % folds].append(int(position))
    return [np.sort(np.array(fold, dtype=np.int64)) for fold in positions if fold]


def without_labels(split: Split, held_out: Positions, groups: Rows | None = None) -> Split:
    """The split without some of its labelled images and, with ``groups``, a number per row of the table, without
    unlabelled images of their groups."""
    kept = np.setdiff1d(np.arange(len(split.labelled)), held_out)
    pool = split.unlabelled
    if groups is not None:
        pool = pool[~np.isin(groups[pool], groups[split.labelled[held_out]])]
    return replace(split, labelled=split.labelled[kept], labels=split.labels[kept], unlabelled=pool)
