"""Class counts of the published protocol: every list and total that it gives."""

from __future__ import annotations

import pytest

from unissl.splits import class_counts

CIFAR10, CIFAR100, FOOD101 = (10, 4996), (100, 496), (101, 496)
"""(classes, images of the largest unlabelled class); SVHN shares CIFAR-10's."""


@pytest.mark.parametrize(
    ("data", "gamma", "decayed_total", "uniform_each", "uniform_total"),
    [
        (CIFAR10, 50, 13985, 1398, 13980),
        (CIFAR10, 100, 12395, 1239, 12390),
        (CIFAR10, 150, 11653, 1165, 11650),
        (CIFAR100, 5, 24657, 246, 24600),
        (CIFAR100, 10, 19415, 194, 19400),
        (CIFAR100, 15, 17142, 171, 17100),
        (FOOD101, 15, 17310, 171, 17271),
    ],
)
def test_totals(data: tuple[int, int], gamma: float, decayed_total: int, uniform_each: int, uniform_total: int) -> None:
    assert sum(class_counts("long-tailed", *data, gamma)) == decayed_total
    assert sum(class_counts("arbitrary", *data, gamma, seed=2)) == decayed_total
    uniform = class_counts("uniform", *data, gamma)
    assert uniform == [uniform_each] * data[0]
    assert sum(uniform) == uniform_total


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [
        (50, [4996, 3234, 2094, 1356, 878, 568, 368, 238, 154, 99]),
        (100, [4996, 2995, 1795, 1076, 645, 386, 231, 139, 83, 49]),
        (150, [4996, 2863, 1640, 940, 538, 308, 176, 101, 58, 33]),
    ],
)
def test_long_tailed_cifar10(gamma: float, expected: list[int]) -> None:
    assert class_counts("long-tailed", *CIFAR10, gamma) == expected


@pytest.mark.parametrize(
    ("gamma", "seed", "expected"),
    [
        (50, 0, [238, 154, 3234, 568, 1356, 878, 2094, 4996, 99, 368]),
        (50, 1, [368, 154, 99, 238, 568, 1356, 4996, 878, 3234, 2094]),
        (50, 2, [568, 99, 1356, 878, 368, 238, 2094, 154, 3234, 4996]),
        (100, 0, [139, 83, 2995, 386, 1076, 645, 1795, 4996, 49, 231]),
        (100, 1, [231, 83, 49, 139, 386, 1076, 4996, 645, 2995, 1795]),
        (100, 2, [386, 49, 1076, 645, 231, 139, 1795, 83, 2995, 4996]),
        (150, 0, [101, 58, 2863, 308, 940, 538, 1640, 4996, 33, 176]),
        (150, 1, [176, 58, 33, 101, 308, 940, 4996, 538, 2863, 1640]),
        (150, 2, [308, 33, 940, 538, 176, 101, 1640, 58, 2863, 4996]),
    ],
)
def test_arbitrary_cifar10(gamma: float, seed: int, expected: list[int]) -> None:
    assert class_counts("arbitrary", *CIFAR10, gamma, seed) == expected


@pytest.mark.parametrize(
    ("data", "gamma", "seed", "first_eight"),
    [
        (CIFAR100, 10, 0, [290, 411, 384, 421, 162, 366, 484, 59]),
        (CIFAR100, 10, 1, [144, 209, 109, 151, 451, 311, 204, 402]),
        (CIFAR100, 10, 2, [496, 84, 120, 114, 484, 95, 473, 431]),
        (CIFAR100, 15, 2, [496, 62, 93, 88, 482, 71, 469, 420]),
        (CIFAR100, 5, 2, [496, 144, 183, 178, 488, 156, 480, 449]),
        (FOOD101, 15, 2, [496, 39, 92, 59, 482, 124, 469, 421]),
    ],
)
def test_arbitrary_many_classes(data: tuple[int, int], gamma: float, seed: int, first_eight: list[int]) -> None:
    counts = class_counts("arbitrary", *data, gamma, seed)
    assert len(counts) == data[0]
    assert counts[:8] == first_eight
