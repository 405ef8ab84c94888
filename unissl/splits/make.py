"""Labels of a table -> which rows are labelled and which are the unlabelled pool.

The procedure and its random stream are those of the published protocol, so that a seed means the same rows: for each
class in order, its rows ascending are shuffled; the first n_c are labelled and are shuffled once more; the next m_c
are unlabelled. At last the labelled list is shuffled. Two things follow: the labelled rows of a seed are the same for
every class mix of the pool, and the pools of one class are nested. Images of none of the classes (open set) are drawn
after all that and end the pool; held-out labels are taken from the labelled ones without a further draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, NonNegativeInt, field_validator, model_validator

from unissl.config import Settings
from unissl.errors import UserError
from unissl.splits.distributions import Profile, class_counts
from unissl.types import OUTSIDE, UNKNOWN, Split

Rows = npt.NDArray[np.int64]


class SplitConfig(Settings):
    """How many images of each class are labelled, and what the unlabelled pool is made of."""

    labels_per_class: int = Field(default=4, ge=1)
    """Labelled images of a class; of the largest class if labelled_profile is not uniform."""

    labelled_profile: Profile = "uniform"
    """Class mix of the labelled images; arbitrary orders the classes by the seed, the same way as for the pool."""

    gamma_l: float = Field(default=1.0, ge=1.0, allow_inf_nan=False)
    """Labelled images of the largest class / of the smallest class."""

    labelled_share: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Labelled share of each class's images, rounded to a whole number, in place of the three settings above."""

    labelled_counts: tuple[NonNegativeInt, ...] | None = None
    """Labelled images of each class, in place of the four settings above."""

    profile: Literal["uniform", "long-tailed", "arbitrary", "natural", "given"] = "arbitrary"
    """Class mix of the pool. natural is the mix of the data: all images that are not labelled are the pool. given takes
    the table as it is: its rows without a label are the pool."""

    max_count: int | None = Field(default=None, ge=1)
    """Unlabelled images of the largest class; by default what the smallest class has left after its labels."""

    gamma: float = Field(default=100.0, ge=1.0, allow_inf_nan=False)
    """Unlabelled images of the largest class / of the smallest class; for uniform it only sets the total."""

    counts: tuple[NonNegativeInt, ...] | None = None
    """Unlabelled images of each class, in place of profile, max_count and gamma."""

    label_pool: bool = False
    """Move the pool into the labelled set, with its true labels: the supervised references."""

    heldout: float = Field(default=0.25, gt=0.0, lt=1.0)
    """Share of each class's labels, but at least one and not all, that methods which need held-out labels keep from
    every loss. All others use all labels."""

    unknown_classes: tuple[str, ...] = ()
    """Open set: classes that are none of the classes; their images are in the pool and in the test set as unknowns."""

    unknown_data: str | None = None
    """Open set: a second data set, all of whose images are unknowns."""

    unknown_root: str | None = None
    """Where the second data set lies, if not in the usual place."""

    unknown_data_classes: int | None = Field(default=None, ge=1)
    """Of the second data set, only images of its first so many classes."""

    unknown_count: int | None = Field(default=None, ge=0)
    """Open set: unknowns in the pool; by default all there are."""

    @field_validator("unknown_classes", mode="before")
    @classmethod
    def _names_as_text(cls, value: object) -> object:
        """Numbers are names too: --set split.unknown_classes=[7,8,9]."""
        return [str(name) for name in value] if isinstance(value, (list, tuple)) else value

    @model_validator(mode="after")
    def _no_setting_without_effect(self) -> Self:
        if self.unknown_data is None and self.unknown_root is not None:
            raise ValueError("unknown_root says where unknown_data lies, so give unknown_data too")
        if self.unknown_data is None and self.unknown_data_classes is not None:
            raise ValueError("unknown_data_classes counts classes of unknown_data, so give unknown_data too")
        if self.unknown_count is not None and not self.unknown_classes and self.unknown_data is None:
            raise ValueError("unknown_count needs unknown_classes or unknown_data, where unknowns come from")
        if self.labelled_profile == "uniform" and self.gamma_l > 1:
            raise ValueError("gamma_l above 1 needs labelled_profile 'long-tailed' or 'arbitrary'")
        chosen = (self.counts, self.labelled_counts, self.labelled_share, self.max_count, self.label_pool or None)
        if self.profile == "given" and any(value is not None for value in chosen):
            raise ValueError(
                "profile 'given' takes the table as it is, so leave out "
                "counts, labelled_counts, labelled_share, max_count and label_pool, or choose another profile"
            )
        if self.profile == "natural" and self.max_count is not None:
            raise ValueError("profile 'natural' takes all that is not labelled, so leave out max_count")
        if self.labelled_share is not None and self.labelled_counts is not None:
            raise ValueError("give either labelled_share or labelled_counts, not both")
        return self


def make_split(
    labels: Rows,
    num_classes: int,
    config: SplitConfig,
    seed: int,
    class_names: Sequence[str] | None = None,
    *,
    hold_out: bool = False,
) -> Split:
    """The split of one seed. Rows with label -1, where there are any, are the whole pool, and then classes only
    give labels (STL-10, or a folder with unsorted images). Rows with label -2 are of none of the classes and go to
    the pool. ``hold_out`` sets some of the labels aside."""
    if len(labels) and not OUTSIDE <= labels.min() <= labels.max() < num_classes:
        raise ValueError(f"labels must lie in -2 .. {num_classes - 1}")
    if num_classes < 2:
        raise UserError(f"A classifier needs at least two classes, not {num_classes}; add images of another class.")
    names = [str(c) for c in range(num_classes)] if class_names is None else list(class_names)
    available = [int(n) for n in np.bincount(labels[labels >= 0], minlength=num_classes)]
    if config.profile == "given":
        _refuse_unlabelled_class(available, names)
        labelled = np.flatnonzero(labels >= 0)
        outside = np.flatnonzero(labels == OUTSIDE)[: config.unknown_count]
        pool = np.concatenate([np.flatnonzero(labels == UNKNOWN), outside])
        return _held_out(Split(labelled, labels[labelled], pool, num_classes), config, hold_out)

    wanted = _labelled_counts(config, available, seed)
    _refuse_unlabelled_class(wanted, names)
    _refuse_too_few_labels(available, wanted, names)
    pool_is_unknown = bool((labels == UNKNOWN).any())
    if pool_is_unknown:
        _refuse_pool_settings(config)
        pool_counts = [0] * num_classes
    else:
        pool_counts = _pool_counts(config, available, wanted, names, seed)
    labelled, pool, outside = _draw(labels, wanted, pool_counts, seed)
    if config.label_pool:  # images of none of the classes have no label to give
        labelled, pool, outside = np.concatenate([labelled, pool]), pool[:0], outside[:0]
    if config.unknown_count is not None and config.unknown_count > len(outside) and not config.label_pool:
        raise UserError(
            f"There are {len(outside)} images of unknown classes, fewer than unknown_count = {config.unknown_count}; "
            "lower it."
        )
    pool = np.concatenate([pool, outside[: config.unknown_count]])
    return _held_out(Split(labelled, labels[labelled], pool, num_classes), config, hold_out)


def _held_out(split: Split, config: SplitConfig, hold_out: bool) -> Split:
    """Set aside the last labels of each class, which stand in random order; each class keeps at least one to learn."""
    if not hold_out:
        return split
    chosen = np.zeros(len(split.labelled), dtype=bool)
    for c, count in enumerate(split.labelled_counts):
        wanted = min(count - 1, max(1, round(config.heldout * count)))
        chosen[np.flatnonzero(split.labels == c)[count - wanted :]] = True
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
    """The random part: labels, pool, images of none of the classes; the order of the calls to ``rng`` is the
    protocol's."""
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
    outside = np.flatnonzero(labels == OUTSIDE)
    rng.shuffle(outside)
    return chosen, np.concatenate(pool), outside


def _labelled_counts(config: SplitConfig, available: Sequence[int], seed: int) -> list[int]:
    if config.labelled_counts is not None:
        return _one_per_class("labelled_counts", config.labelled_counts, len(available))
    if config.labelled_share is not None:
        return [round(config.labelled_share * count) for count in available]
    return class_counts(config.labelled_profile, len(available), config.labels_per_class, config.gamma_l, seed)


def _pool_counts(
    config: SplitConfig, available: list[int], labelled: list[int], names: list[str], seed: int
) -> list[int]:
    left = [a - n for a, n in zip(available, labelled, strict=True)]
    if config.counts is not None:
        counts, fix = _one_per_class("counts", config.counts, len(left)), "its entry in counts"
    elif config.profile == "natural":
        counts, fix = left, "the number of labels"
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
