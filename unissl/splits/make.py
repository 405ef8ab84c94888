"""Split a table into labelled rows and the unlabelled pool.

The procedure and its random stream are those of the published protocol, so a seed means the same rows: for each
class in order, its rows ascending are shuffled; the first n_c are labelled and are shuffled once more; the next m_c
are unlabelled. At last the labelled list is shuffled. So the labelled rows of a seed are the same for every class
distribution of the pool, and the pools of one class are nested. Out-of-distribution images (open set) are drawn last
and end the pool; held-out labels come from the labelled ones without another draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from pydantic import (
    Field,
    NonNegativeInt,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from unissl.config import Settings
from unissl.data.groups import hold_out_groups
from unissl.errors import UserError
from unissl.splits.distributions import Distribution, class_counts
from unissl.types import OOD, UNLABELLED, Rows, Split


class SplitConfig(Settings):
    """How many images of each class are labelled, and which images are the unlabelled pool."""

    kind: Literal["simulated", "given"] = "simulated"
    """simulated draws labelled images and an unlabelled pool from a labelled data set. given takes the labels as they
    are: images without a label are the pool."""

    labels_per_class: int = Field(default=4, ge=1)
    """Labelled images per class; of the largest class if labelled_distribution is not uniform."""

    labelled_distribution: Distribution = "uniform"
    """Class distribution of the labelled images; arbitrary shuffles the classes by the seed, the same way as for the
    pool."""

    gamma_l: float = Field(default=1.0, ge=1.0, allow_inf_nan=False)
    """Imbalance ratio of the labelled images (largest / smallest class)."""

    labelled_fraction: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Labelled fraction of each class, rounded to a whole number of images; replaces the three settings above."""

    labelled_counts: tuple[NonNegativeInt, ...] | None = None
    """Labelled images of each class; replaces the four settings above."""

    pool_distribution: Literal["uniform", "long-tailed", "arbitrary", "natural"] = "arbitrary"
    """Class distribution of the unlabelled pool. natural puts all images that are not labelled into the pool."""

    max_count: int | None = Field(default=None, ge=1)
    """Unlabelled images of the largest class; by default what the smallest class has left after its labels."""

    gamma: float = Field(default=100.0, ge=1.0, allow_inf_nan=False)
    """Imbalance ratio of the unlabelled pool (largest / smallest class); for uniform it only sets the total."""

    pool_counts: tuple[NonNegativeInt, ...] | None = None
    """Unlabelled images of each class; replaces pool_distribution, max_count and gamma."""

    reveal_pool_labels: bool = False
    """Move the pool into the labelled set, with its true labels: the fully supervised upper bounds."""

    calibration_fraction: float = Field(default=0.25, gt=0.0, lt=1.0)
    """Fraction of each class's labels, at least one and not all, that methods which calibrate themselves keep out of
    every loss. All other methods train on all labels."""

    ood_classes: tuple[str, ...] = ()
    """Open set: classes that count as out-of-distribution; their images are in the pool and in the test set."""

    ood_data: str | None = None
    """Open set: a second data set, all of whose images are out-of-distribution."""

    ood_root: str | None = None
    """Path of the second data set, if it is not in the usual folder."""

    ood_data_classes: int | None = Field(default=None, ge=1)
    """Use only images of the first so many classes of the second data set."""

    ood_count: int | None = Field(default=None, ge=0)
    """Open set: out-of-distribution images in the pool; by default all there are."""

    @field_validator("ood_classes", mode="before")
    @classmethod
    def _names_as_text(cls, value: object) -> object:
        """Numbers are names too: --set split.ood_classes=[7,8,9]."""
        return [str(name) for name in value] if isinstance(value, (list, tuple)) else value

    @model_validator(mode="after")
    def _check_every_setting_has_an_effect(self) -> Self:
        if self.ood_data is None and self.ood_root is not None:
            raise ValueError("ood_root is the path of ood_data, so give ood_data too")
        if self.ood_data is None and self.ood_data_classes is not None:
            raise ValueError("ood_data_classes counts classes of ood_data, so give ood_data too")
        if self.ood_count is not None and not self.ood_classes and self.ood_data is None:
            raise ValueError("ood_count needs ood_classes or ood_data, where out-of-distribution images come from")
        if self.labelled_distribution == "uniform" and self.gamma_l > 1:
            raise ValueError("gamma_l above 1 needs labelled_distribution 'long-tailed' or 'arbitrary'")
        without_effect = sorted(self.model_fields_set - GIVEN_KEYS)
        if self.kind == "given" and without_effect:
            raise ValueError(
                f"kind 'given' takes the labels as they are, so {without_effect[0]} has no effect; leave it out, or"
                " set kind = 'simulated'"
            )
        if self.pool_distribution == "natural" and self.max_count is not None:
            raise ValueError("pool_distribution 'natural' takes all that is not labelled, so leave out max_count")
        if self.labelled_fraction is not None and self.labelled_counts is not None:
            raise ValueError("give either labelled_fraction or labelled_counts, not both")
        return self

    @model_serializer(mode="wrap")
    def _record_what_has_an_effect(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A given split is recorded without the settings of a simulated one."""
        tree: dict[str, Any] = serialise(self)
        return {key: value for key, value in tree.items() if self.kind == "simulated" or key in GIVEN_KEYS}


GIVEN_KEYS = {"kind", "calibration_fraction", "ood_classes", "ood_data", "ood_root", "ood_data_classes", "ood_count"}
"""Settings that have an effect if kind is "given"; all others are of the draw of labelled images and pool."""


def make_split(
    labels: Rows,
    num_classes: int,
    config: SplitConfig,
    seed: int,
    class_names: Sequence[str] | None = None,
    *,
    hold_out: bool = False,
    groups: Rows | None = None,
) -> Split:
    """The split of one seed.

    If there are unlabelled rows (-1), they are the whole pool, and the labelled rows only supply labels (STL-10, or a
    folder with unsorted images). Out-of-distribution rows (-2) are added to the pool. ``hold_out`` holds out some of
    the labels for calibration; ``groups``, a number per row, are not separated by it.
    """
    if len(labels) and not OOD <= labels.min() <= labels.max() < num_classes:
        raise ValueError(f"labels must lie in -2 .. {num_classes - 1}")
    if num_classes < 2:
        raise UserError(f"A classifier needs at least two classes, not {num_classes}; add images of another class.")
    names = [str(c) for c in range(num_classes)] if class_names is None else list(class_names)
    available = [int(n) for n in np.bincount(labels[labels >= 0], minlength=num_classes)]
    labelled_counts = available if config.kind == "given" else _labelled_counts(config, available, seed)
    _require_labels_of_each_class(labelled_counts, names)
    if config.kind == "given":
        labelled, pool, ood = (np.flatnonzero(rows) for rows in (labels >= 0, labels == UNLABELLED, labels == OOD))
    else:
        _check_enough_labels(available, labelled_counts, names)
        if (labels == UNLABELLED).any():
            _check_no_pool_settings(config)
            pool_counts = [0] * num_classes
        else:
            pool_counts = _pool_counts(config, available, labelled_counts, names, seed)
        labelled, pool, ood = _draw(labels, labelled_counts, pool_counts, seed)
        if config.reveal_pool_labels:  # out-of-distribution images have no label
            labelled, pool, ood = np.concatenate([labelled, pool]), pool[:0], ood[:0]
        elif config.ood_count is not None and config.ood_count > len(ood):
            raise UserError(
                f"There are {len(ood)} out-of-distribution images, fewer than ood_count = {config.ood_count}; lower it."
            )
    split = Split(labelled, labels[labelled], np.concatenate([pool, ood[: config.ood_count]]), num_classes)
    return _hold_out_labels(split, config.calibration_fraction, groups) if hold_out else split


def _hold_out_labels(split: Split, fraction: float, groups: Rows | None) -> Split:
    """Hold out the last labels of each class, which are in random order; each class keeps at least one for training."""
    chosen = np.zeros(len(split.labelled), dtype=bool)
    for c, count in enumerate(split.labelled_counts):
        held_out = min(count - 1, max(1, round(fraction * count)))
        chosen[np.flatnonzero(split.labels == c)[count - held_out :]] = True
    if groups is not None:
        count = max(1, round(fraction * len(chosen)))
        rows = hold_out_groups(split.labels, groups[split.labelled], count, min_train=1)
        chosen = np.isin(np.arange(len(chosen)), rows)
    if not chosen.any():
        raise UserError(
            "No label can be held out, since no class has two; label more images, or use a method that needs none."
        )
    return replace(
        split,
        labelled=split.labelled[~chosen],
        labels=split.labels[~chosen],
        heldout=split.labelled[chosen],
        heldout_labels=split.labels[chosen],
    )


def _draw(
    labels: Rows, labelled_counts: Sequence[int], pool_counts: Sequence[int], seed: int
) -> tuple[Rows, Rows, Rows]:
    """The random part: labelled, pool and out-of-distribution rows; the protocol fixes the order of ``rng`` calls."""
    rng = np.random.RandomState(seed)
    unlabelled = np.flatnonzero(labels == UNLABELLED)
    rng.shuffle(unlabelled)
    labelled, pool = [], [unlabelled]
    for c, (n, m) in enumerate(zip(labelled_counts, pool_counts, strict=True)):
        rows = np.flatnonzero(labels == c)
        rng.shuffle(rows)
        rng.shuffle(rows[:n])
        labelled.append(rows[:n])
        pool.append(rows[n : n + m])
    chosen = np.concatenate(labelled)
    rng.shuffle(chosen)
    ood = np.flatnonzero(labels == OOD)
    rng.shuffle(ood)
    return chosen, np.concatenate(pool), ood


def _labelled_counts(config: SplitConfig, available: Sequence[int], seed: int) -> list[int]:
    if config.labelled_counts is not None:
        return _one_per_class("labelled_counts", config.labelled_counts, len(available))
    if config.labelled_fraction is not None:
        return [round(config.labelled_fraction * count) for count in available]
    return class_counts(config.labelled_distribution, len(available), config.labels_per_class, config.gamma_l, seed)


def _pool_counts(
    config: SplitConfig, available: list[int], labelled: list[int], names: list[str], seed: int
) -> list[int]:
    left = [a - n for a, n in zip(available, labelled, strict=True)]
    if config.pool_counts is not None:
        counts, fix = _one_per_class("pool_counts", config.pool_counts, len(left)), "its entry in pool_counts"
    elif config.pool_distribution == "natural":
        counts, fix = left, "the number of labels"
    else:
        largest, fix = config.max_count or min(left), "max_count"
        if largest < 1:
            raise UserError(
                f"Class {names[left.index(0)]!r} has no image left for the pool after its labels; "
                "lower labels_per_class, or give pool_counts."
            )
        counts = class_counts(config.pool_distribution, len(left), largest, config.gamma, seed)
    for c, count in enumerate(counts):
        if count > left[c]:
            raise UserError(
                f"Class {names[c]!r} has {available[c]} images, but the split needs {labelled[c] + count} "
                f"({labelled[c]} labelled and {count} unlabelled); lower {fix} or the number of labels."
            )
    return counts


def _one_per_class(setting: str, counts: Sequence[int], num_classes: int) -> list[int]:
    if len(counts) != num_classes:
        raise UserError(f"{setting} has {len(counts)} numbers, but there are {num_classes} classes; give one for each.")
    return list(counts)


def _require_labels_of_each_class(counts: Sequence[int], names: Sequence[str]) -> None:
    if 0 in counts:
        raise UserError(
            f"Class {names[counts.index(0)]!r} would have no labelled image; "
            "give every class at least one label, or leave the class out."
        )


def _check_enough_labels(available: Sequence[int], counts: Sequence[int], names: Sequence[str]) -> None:
    for c, count in enumerate(counts):
        if count > available[c]:
            raise UserError(
                f"Class {names[c]!r} has {available[c]} labelled images, but the split needs {count}; "
                "lower labels_per_class (or its entry in labelled_counts), or label more."
            )


def _check_no_pool_settings(config: SplitConfig) -> None:
    """Unlabelled rows cannot be counted by class, nor reveal labels."""
    if config.pool_counts is not None or config.max_count is not None or config.reveal_pool_labels:
        raise UserError(
            "The pool is the unlabelled images, whose classes are not known; "
            "leave out pool_counts, max_count and reveal_pool_labels."
        )
