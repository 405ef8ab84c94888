"""Splits of the published protocol on tables of the published size: what each data set is cut into."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unissl.splits import SplitConfig, make_split
from unissl.types import Split

CIFAR100, FOOD101 = np.repeat(np.arange(100), 500), np.repeat(np.arange(101), 750)
SVHN = np.concatenate([np.arange(604_388 - 50_000) % 3, np.repeat(np.arange(10), 5_000)])
"""604,388 images, all classes with at least the 5,000 that are needed; the true mix of extra plays no part."""
STL10 = np.concatenate([np.repeat(np.arange(10), 500), np.full(100_000, -1)])


def split(labels: np.ndarray, seed: int, **settings: Any) -> Split:
    return make_split(labels, int(labels.max()) + 1, SplitConfig(labels_per_class=4, **settings), seed)


@pytest.mark.parametrize(
    ("labels", "largest", "gamma", "decayed", "uniform", "first"),
    [
        (SVHN, 4996, 150, 11653, 11650, [308, 33, 940, 538, 176, 101, 1640, 58, 2863, 4996]),
        (SVHN, 4996, 100, 12395, 12390, [386, 49, 1076, 645, 231, 139, 1795, 83, 2995, 4996]),
        (CIFAR100, 496, 10, 19415, 19400, [496, 84, 120, 114, 484, 95, 473, 431]),
        (CIFAR100, 496, 15, 17142, 17100, [496, 62, 93, 88, 482, 71, 469, 420]),
        (FOOD101, 496, 15, 17310, 17271, [496, 39, 92, 59, 482, 124, 469, 421]),
    ],
)
def test_counts_of_seed_2(
    labels: np.ndarray, largest: int, gamma: float, decayed: int, uniform: int, first: list[int]
) -> None:
    arbitrary = split(labels, 2, pool_distribution="arbitrary", gamma=gamma, max_count=largest)
    assert arbitrary.labelled_counts == (4,) * arbitrary.num_classes
    assert len(arbitrary.unlabelled) == decayed
    assert np.bincount(labels[arbitrary.unlabelled])[: len(first)].tolist() == first
    assert len(split(labels, 2, pool_distribution="long-tailed", gamma=gamma, max_count=largest).unlabelled) == decayed
    assert len(split(labels, 2, pool_distribution="uniform", gamma=gamma, max_count=largest).unlabelled) == uniform


def test_stl10_has_its_own_pool() -> None:
    made = split(STL10, 0)
    assert made.labelled_counts == (4,) * 10
    assert sorted(made.unlabelled) == list(range(5_000, 105_000))
    rng = np.random.RandomState(0)  # the images without a label are shuffled before any class
    rng.shuffle(np.arange(100_000))
    first = np.arange(500)
    rng.shuffle(first)
    assert set(made.labelled[made.labels == 0]) == set(first[:4])
