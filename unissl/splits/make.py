"""Labels of a table -> which rows are labelled and which are the unlabelled pool.

The procedure and its random stream are those of the published protocol, so that a seed means the same rows: for each
class in order, its rows ascending are shuffled; the first n_c are labelled and are shuffled once more; the next m_c
are unlabelled. At last the labelled list is shuffled. Two things follow: the labelled rows of a seed are the same for
every class mix of the pool, and the pools of one class are nested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, NonNegativeInt, model_validator

from unissl.config import Settings
from unissl.errors import UserError
from unissl.splits.profiles import Profile, class_counts
from unissl.types import UNKNOWN, Split

Rows = npt.NDArray[np.int64]


class SplitConfig(Settings):
    """How many images of each class are labelled, and what the unlabelled pool is made of."""

    labels_per_class: int = Field(default=4, ge=1)
    """Labelled images of a class; of the largest class if labelled_profile is not uniform."""

    labelled_profile: Profile = "uniform"
    """Class mix of the labelled images; arbitrary orders the classes by the seed, the same way as for the pool."""

    gamma_l: float = Field(default=1.0, ge=1.0, allow_inf_nan=False)
    """Labelled images of the largest class / of the smallest class."""

    labelled_counts: tuple[NonNegativeInt, ...] | None = None
    """Labelled images of each class, in place of the three settings above."""

    profile: Literal["uniform", "long-tailed", "arbitrary", "given"] = "arbitrary"
    """Class mix of the pool. given takes the table as it is: its rows without a label are the pool."""

    max_count: int | None = Field(default=None, ge=1)
    """Unlabelled images of the largest class; by default what the smallest class has left after its labels."""

    gamma: float = Field(default=100.0, ge=1.0, allow_inf_nan=False)
    """Unlabelled images of the largest class / of the smallest class; for uniform it only sets the total."""

    counts: tuple[NonNegativeInt, ...] | None = None
    """Unlabelled images of each class, in place of profile, max_count and gamma."""

    label_pool: bool = False
    """Move the pool into the labelled set, with its true labels: the supervised references."""

    @model_validator(mode="after")
    def _no_setting_without_effect(self) -> Self:
        if self.labelled_profile == "uniform" and self.gamma_l > 1:
            raise ValueError("gamma_l above 1 needs labelled_profile 'long-tailed' or 'arbitrary'")
        chosen = (self.counts, self.labelled_counts, self.max_count, self.label_pool or None)
        if self.profile == "given" and any(value is not None for value in chosen):
            raise ValueError(
                "profile 'given' takes the table as it is, so leave out "
                "counts, labelled_counts, max_count and label_pool, or choose another profile"
            )
        return self


def make_split(
    labels: Rows, num_classes: int, config: SplitConfig, seed: int, class_names: Sequence[str] | None = None
) -> Split:
    """The split of one seed. Rows with label -1, where there are any, are the whole pool, and then classes only
    give labels (STL-10, or a folder with unsorted images)."""
    if len(labels) and not UNKNOWN <= labels.min() <= labels.max() < num_classes:
        raise ValueError(f"labels must lie in -1 .. {num_classes - 1}")
    if num_classes < 2:
        raise UserError(f"A classifier needs at least two classes, not {num_classes}; add images of another class.")
    names = [str(c) for c in range(num_classes)] if class_names is None else list(class_names)
    available = [int(n) for n in np.bincount(labels[labels != UNKNOWN], minlength=num_classes)]
    if config.profile == "given":
        _refuse_unlabelled_class(available, names)
        labelled = np.flatnonzero(labels != UNKNOWN)
        return Split(labelled, labels[labelled], np.flatnonzero(labels == UNKNOWN), num_classes)

    wanted = _labelled_counts(config, num_classes, seed)
    _refuse_unlabelled_class(wanted, names)
    _refuse_too_few_labels(available, wanted, names)
    pool_is_unknown = bool((labels == UNKNOWN).any())
    if pool_is_unknown:
        _refuse_pool_settings(config)
        pool_counts = [0] * num_classes
    else:
        pool_counts = _pool_counts(config, available, wanted, names, seed)
    labelled, pool = _draw(labels, wanted, pool_counts, seed)
    if config.label_pool:
        labelled, pool = np.concatenate([labelled, pool]), pool[:0]
    return Split(labelled, labels[labelled], pool, num_classes)


def _draw(labels: Rows, labelled_counts: Sequence[int], pool_counts: Sequence[int], seed: int) -> tuple[Rows, Rows]:
    """The random part; the order of the calls to ``rng`` is the protocol's."""
    rng = np.random.RandomState(seed)
    unknown = np.flatnonzero(labels == UNKNOWN)
    rng.shuffle(unknown)
    labelled, pool = [], [unknown]
    for c, (n, m) in enumerate(zip(labelled_counts, pool_counts, strict=True)):
        rows = np.flatnonzero(labels == c)
        rng.shuffle(rows)
        rng.shuffle(rows[:n])
        labelled.append(rows[:n])
        pool.append(rows[n : n + m])
    chosen = np.concatenate(labelled)
    rng.shuffle(chosen)
    return chosen, np.concatenate(pool)


def _labelled_counts(config: SplitConfig, num_classes: int, seed: int) -> list[int]:
    if config.labelled_counts is not None:
        return _one_per_class("labelled_counts", config.labelled_counts, num_classes)
    return class_counts(config.labelled_profile, num_classes, config.labels_per_class, config.gamma_l, seed)


def _pool_counts(
    config: SplitConfig, available: list[int], labelled: list[int], names: list[str], seed: int
) -> list[int]:
    left = [a - n for a, n in zip(available, labelled, strict=True)]
    if config.counts is not None:
        counts, fix = _one_per_class("counts", config.counts, len(left)), "its entry in counts"
    else:
        largest, fix = config.max_count or min(left), "max_count"
        if largest < 1:
            raise UserError(
                f"Class {names[left.index(0)]!r} has no image left for the pool after its labels; "
                "lower labels_per_class, or give counts for the pool."
            )
        counts = class_counts(config.profile, len(left), largest, config.gamma, seed)
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


def _refuse_unlabelled_class(counts: Sequence[int], names: Sequence[str]) -> None:
    if 0 in counts:
        raise UserError(
            f"Class {names[counts.index(0)]!r} would have no labelled image; "
            "give every class at least one label, or leave the class out."
        )


def _refuse_too_few_labels(available: Sequence[int], wanted: Sequence[int], names: Sequence[str]) -> None:
    for c, count in enumerate(wanted):
        if count > available[c]:
            raise UserError(
                f"Class {names[c]!r} has {available[c]} labelled images, but the split needs {count}; "
                "lower labels_per_class (or its entry in labelled_counts), or label more."
            )


def _refuse_pool_settings(config: SplitConfig) -> None:
    """Rows of unknown class cannot be counted out by class, nor serve as labels."""
    if config.counts is not None or config.max_count is not None or config.label_pool:
        raise UserError(
            "The pool is the images without a label, whose classes are not known; "
            "leave out counts, max_count and label_pool."
        )
