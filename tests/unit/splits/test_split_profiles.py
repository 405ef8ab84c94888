from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal, localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unissl.errors import UserError
from unissl.splits import class_counts

sizes = st.tuples(st.integers(2, 60), st.integers(1, 6000), st.integers(10, 3000).map(lambda tenths: tenths / 10))


def long_division(num_classes: int, max_count: int, gamma: float) -> list[int]:
    """The formula in 80-digit decimals; what lies within 1e-40 of a whole number is that number."""
    counts = []
    with localcontext() as context:
        context.prec = 80
        for c in range(num_classes):
            value = max_count * Decimal(str(gamma)) ** (Decimal(-c) / (num_classes - 1))
            nearest = value.to_integral_value()
            exact = abs(value - nearest) < Decimal("1e-40")
            counts.append(int(nearest if exact else value.to_integral_value(ROUND_FLOOR)))
    return counts


@settings(deadline=None, max_examples=100)
@given(sizes)
def test_long_tailed_is_the_formula_to_the_last_image(size: tuple[int, int, float]) -> None:
    assert class_counts("long-tailed", *size) == long_division(*size)


@settings(deadline=None, max_examples=50)
@given(sizes, st.integers(0, 1000))
def test_mixes_share_their_images(size: tuple[int, int, float], seed: int) -> None:
    decayed = class_counts("long-tailed", *size)
    assert decayed[0] == size[1]
    assert decayed == sorted(decayed, reverse=True)
    assert sorted(class_counts("arbitrary", *size, seed), reverse=True) == decayed
    (each,) = set(class_counts("uniform", *size, seed))
    assert each * size[0] <= sum(decayed) < (each + 1) * size[0]


@pytest.mark.parametrize(
    ("max_count", "gamma", "expected"),
    [
        (2450, 49, [2450, 350, 50]),
        (729, 729, [729, 81, 9, 1]),
        (2401, 2401, [2401, 343, 49, 7, 1]),
        (130, 1.3, [130, 100]),
    ],
)
def test_whole_numbers_do_not_lose_an_image(max_count: int, gamma: float, expected: list[int]) -> None:
    steps = len(expected) - 1
    in_floats = [int(max_count * gamma ** (-c / steps)) for c in range(steps + 1)]
    assert in_floats != expected  # each case is one where plain floating point falls short
    assert class_counts("long-tailed", len(expected), max_count, gamma) == expected


@pytest.mark.parametrize("profile", ["uniform", "long-tailed", "arbitrary"])
def test_gamma_one_is_balanced(profile: str) -> None:
    assert class_counts(profile, 5, 7, 1) == [7] * 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("long-tail", 10, 100, 10), "Did you mean 'long-tailed'"),
        (("zipf", 10, 100, 10), "Known: arbitrary, long-tailed, uniform"),
        (("uniform", 10, 100, 0.5), "1 or more, not 0.5"),
        (("uniform", 10, 100, float("nan")), "1 or more, not nan"),
        (("uniform", 10, 100, float("inf")), "1 or more, not inf"),
        (("uniform", 10, 0, 1), "raise max_count"),
        (("uniform", 1, 100, 1), "at least two classes"),
    ],
)
def test_refusals(arguments: tuple[str, int, int, float], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        class_counts(*arguments)
