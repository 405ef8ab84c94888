from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unissl.config import check
from unissl.errors import UserError
from unissl.splits import SplitConfig, class_counts, make_split
from unissl.types import Split

Rows = npt.NDArray[np.int64]


def table(counts: list[int], unknown: int = 0, seed: int = 0) -> Rows:
    """Labels of a table with that many rows per class, in mixed order."""
    labels = np.repeat(np.arange(-1, len(counts)), [unknown, *counts])
    return np.random.default_rng(seed).permutation(labels)


LABELS = table([60, 50, 55, 70])


def split(labels: Rows = LABELS, num_classes: int = 4, seed: int = 0, **settings: Any) -> Split:
    return make_split(labels, num_classes, SplitConfig(**settings), seed)


def slow_split(labels: list[int], labelled_counts: list[int], pool_counts: list[int], seed: int) -> list[list[int]]:
    """The protocol with lists, and with the shuffle itself spelt out (from the end, swap with a drawn place)."""
    rng = np.random.RandomState(seed)

    def shuffled(values: list[int]) -> list[int]:
        values = list(values)
        for last in range(len(values) - 1, 0, -1):
            other = int(rng.randint(0, last + 1))
            values[last], values[other] = values[other], values[last]
        return values

    labelled: list[int] = []
    pool = shuffled([row for row, label in enumerate(labels) if label == -1])
    for c in range(len(labelled_counts)):
        rows = shuffled([row for row, label in enumerate(labels) if label == c])
        n, m = labelled_counts[c], pool_counts[c]
        labelled += shuffled(rows[:n])
        pool += rows[n : n + m]
    return [shuffled(labelled), pool]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_equals_the_slow_protocol_and_keeps_its_promises(data: st.DataObject) -> None:
    small = st.integers(0, 12)
    wanted = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=6))
    pool = [data.draw(small) for _ in wanted]
    labels = table([n + m + data.draw(small) for n, m in zip(wanted, pool, strict=True)], seed=data.draw(small))
    seed = data.draw(st.integers(0, 2**32 - 1))
    made = split(labels, len(wanted), seed, labelled_counts=wanted, pool_counts=pool)

    assert [made.labelled.tolist(), made.unlabelled.tolist()] == slow_split(labels.tolist(), wanted, pool, seed)
    assert made.labelled_counts == tuple(wanted)
    assert np.bincount(labels[made.unlabelled], minlength=len(wanted)).tolist() == pool
    assert np.array_equal(made.labels, labels[made.labelled])
    assert len(np.unique(np.concatenate([made.labelled, made.unlabelled]))) == sum(wanted) + sum(pool)
    assert {array.dtype for array in (made.labelled, made.labels, made.unlabelled)} == {np.dtype(np.int64)}


def test_a_seed_means_the_same_rows_everywhere() -> None:
    made = split(np.arange(12) % 2, 2, seed=2, labels_per_class=2, pool_counts=[2, 3])
    assert made.labelled.tolist() == [8, 2, 1, 11]
    assert made.unlabelled.tolist() == [6, 4, 9, 7, 3]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_labelled_rows_do_not_depend_on_the_pool(seed: int) -> None:
    mixes = [
        split(seed=seed, pool_distribution=profile, gamma=gamma, max_count=top)
        for profile in ("uniform", "long-tailed", "arbitrary")
        for gamma in (1, 7, 46)
        for top in (20, 46)
    ]
    assert len({tuple(made.labelled) for made in mixes}) == 1
    assert len({tuple(made.unlabelled) for made in mixes}) > 6


def test_pools_of_a_class_are_nested() -> None:
    small, large = (split(seed=5, pool_distribution="uniform", gamma=1, max_count=top).unlabelled for top in (9, 31))
    for c in range(4):
        assert large[LABELS[large] == c][:9].tolist() == small[LABELS[small] == c].tolist()


def test_default_pool_is_the_largest_that_every_mix_allows() -> None:
    made = split(seed=3, pool_distribution="arbitrary", gamma=10)
    expected = class_counts("arbitrary", 4, 50 - 4, 10, seed=3)  # class 1 has 50 images, 4 of them labelled
    assert np.bincount(LABELS[made.unlabelled]).tolist() == expected


def test_other_seed_other_rows() -> None:
    assert set(split(seed=0).labelled) != set(split(seed=1).labelled)


def test_long_tailed_labels() -> None:
    made = split(labels_per_class=27, labelled_distribution="long-tailed", gamma_l=27, max_count=10)
    assert made.labelled_counts == (27, 9, 3, 1)


def test_arbitrary_labels_follow_the_seed() -> None:
    made = split(seed=1, labels_per_class=27, labelled_distribution="arbitrary", gamma_l=27, max_count=10)
    assert list(made.labelled_counts) == class_counts("arbitrary", 4, 27, 27, seed=1) != [27, 9, 3, 1]


def test_pool_can_join_the_labelled_set() -> None:
    apart, joined = split(seed=4), split(seed=4, reveal_pool_labels=True)
    assert joined.labelled.tolist() == [*apart.labelled, *apart.unlabelled]
    assert np.array_equal(joined.labels, LABELS[joined.labelled])
    assert len(joined.unlabelled) == 0


def test_rows_without_label_are_the_pool() -> None:
    labels = table([6, 7, 8], unknown=30)
    made = split(labels, 3, seed=9, labels_per_class=2)
    assert [made.labelled.tolist(), made.unlabelled.tolist()] == slow_split(labels.tolist(), [2] * 3, [0] * 3, 9)
    assert sorted(made.unlabelled) == np.flatnonzero(labels == -1).tolist() != made.unlabelled.tolist()


def test_given_takes_the_table_as_it_is() -> None:
    labels = np.array([1, -1, 0, 2, -1, 1])
    made = split(labels, 3, kind="given")
    assert made.labelled.tolist() == [0, 2, 3, 5]
    assert made.labels.tolist() == [1, 0, 2, 1]
    assert made.unlabelled.tolist() == [1, 4]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"labels_per_class": 51},
            "Class 'dog' has 50 labelled images, but the split needs 51; lower labels_per_class",
        ),
        ({"labels_per_class": 50}, "Class 'dog' has no image left for the pool"),
        (
            {"pool_distribution": "uniform", "gamma": 1, "max_count": 47},
            r"Class 'dog' has 50 images, but the split needs 51 \(4 labelled and 47 unlabelled\); lower max_count",
        ),
        (
            {"pool_counts": (56, 46, 52, 66)},
            "Class 'elk' has 55 images, but .* needs 56 .* its entry in pool_counts",
        ),
        ({"pool_counts": (1, 2, 3)}, "pool_counts has 3 numbers, but there are 4 classes"),
        ({"labelled_counts": (1, 2, 3, 4, 5)}, "labelled_counts has 5 numbers, but there are 4 classes"),
        ({"labelled_counts": (1, 0, 3, 4)}, "Class 'dog' would have no labelled image"),
        ({"labelled_distribution": "long-tailed", "gamma_l": 5.0}, "Class 'fox' would have no labelled image"),
    ],
)
def test_refusals_name_class_and_fix(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make_split(LABELS, 4, SplitConfig(**options), 0, class_names=["cat", "dog", "elk", "fox"])


@pytest.mark.parametrize("options", [{"pool_counts": (1, 1)}, {"max_count": 3}, {"reveal_pool_labels": True}])
def test_unknown_rows_cannot_be_counted_by_class(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="whose classes are not known"):
        split(table([9, 9], unknown=5), 2, **options)


def test_given_refuses_a_class_without_label() -> None:
    with pytest.raises(UserError, match="Class '1' would have no labelled image"):
        split(np.array([0, 0, -1]), 2, kind="given")


@pytest.mark.parametrize("settings", [{"kind": "given"}, {"pool_distribution": "uniform"}])
def test_one_class_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="at least two classes"):
        split(np.zeros(9, dtype=np.int64), 1, **settings)


@pytest.mark.parametrize("labels", [[0, 1, 4], [0, -3, 1]])
def test_foreign_labels_are_a_programming_error(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="labels must lie in"):
        split(np.array(labels))


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ({"gamma_l": 5}, "labelled_distribution 'long-tailed'"),
        ({"kind": "given", "pool_counts": [1, 2]}, "has no effect"),
        ({"kind": "given", "reveal_pool_labels": True}, "has no effect"),
        ({"gamma": 0.5}, "split.gamma"),
        ({"labels_per_class": 0}, "split.labels_per_class"),
        ({"pool_counts": [1, -1]}, "split.pool_counts.1"),
        ({"max_counts": 5}, "Did you mean 'max_count'"),
    ],
)
def test_settings_refuse_nonsense(tree: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check(SplitConfig, tree, where="split")
