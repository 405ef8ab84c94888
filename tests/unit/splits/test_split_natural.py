"""The mix that the data have: a share of each class labelled, all the rest the pool."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unissl.config import check
from unissl.errors import UserError
from unissl.splits import SplitConfig, make_split

COUNTS = [57, 200, 15, 4]
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), COUNTS))


def test_all_that_is_not_labelled_is_the_pool() -> None:
    made = make_split(LABELS, 4, SplitConfig(pool_distribution="natural", labelled_fraction=0.2), 3)
    assert made.labelled_counts == (round(11.4), 40, 3, 1)
    assert np.bincount(LABELS[made.unlabelled]).tolist() == [57 - 11, 160, 12, 3]
    assert sorted([*made.labelled, *made.unlabelled]) == list(range(sum(COUNTS)))


def test_the_labels_are_those_that_any_other_pool_would_get() -> None:
    natural = make_split(LABELS, 4, SplitConfig(pool_distribution="natural", labels_per_class=2), 3)
    uniform = make_split(LABELS, 4, SplitConfig(pool_distribution="uniform", labels_per_class=2), 3)
    assert natural.labelled.tolist() == uniform.labelled.tolist() and natural.labelled_counts == (2,) * 4


def test_the_pool_can_be_labelled_too() -> None:
    made = make_split(
        LABELS, 4, SplitConfig(pool_distribution="natural", labelled_fraction=0.5, reveal_pool_labels=True), 3
    )
    assert made.labelled_counts == tuple(COUNTS)


def test_a_share_with_another_mix() -> None:
    made = make_split(LABELS, 4, SplitConfig(labelled_fraction=0.25, pool_counts=(1, 2, 3, 0)), 3)
    assert made.labelled_counts == (14, 50, 4, 1)
    assert np.bincount(LABELS[made.unlabelled], minlength=4).tolist() == [1, 2, 3, 0]


def test_a_class_too_small_for_its_share_is_named() -> None:
    with pytest.raises(UserError, match="Class 'fox' would have no labelled image"):
        make_split(
            LABELS, 4, SplitConfig(pool_distribution="natural", labelled_fraction=0.1), 0, ["cat", "dog", "elk", "fox"]
        )


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ({"pool_distribution": "natural", "max_count": 3}, "takes all that is not labelled, so leave out max_count"),
        ({"labelled_fraction": 0.1, "labelled_counts": [1, 2]}, "either labelled_fraction or labelled_counts"),
        ({"kind": "given", "labelled_fraction": 0.1}, "has no effect"),
        ({"labelled_fraction": 0}, "split.labelled_fraction"),
        ({"labelled_fraction": 1}, "split.labelled_fraction"),
    ],
)
def test_settings_refuse_nonsense(tree: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check(SplitConfig, tree, where="split")
