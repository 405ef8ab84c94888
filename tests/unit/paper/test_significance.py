"""t-tests against scipy and by hand, Holm's rule by hand, and what has no spread, no partner or one seed only."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from unissl_paper.tables.significance import Comparison, Tally, holm, paired, welch, welch_from_moments

VALUES = st.lists(st.floats(0, 100).map(lambda v: round(v, 2)), min_size=2, max_size=6)


@settings(max_examples=60, deadline=None)
@given(VALUES, VALUES)
def test_welch_is_scipys(ours: list[float], theirs: list[float]) -> None:
    if len(set(ours)) == 1 or len(set(theirs)) == 1:  # scipy warns; a test of its own below
        return
    found, expected = welch(ours, theirs), stats.ttest_ind(ours, theirs, equal_var=False)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert found.difference == pytest.approx(np.mean(ours) - np.mean(theirs), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)), min_size=2, max_size=6))
def test_paired_is_scipys(pairs: list[tuple[int, int]]) -> None:
    ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
    if len({one - other for one, other in pairs}) == 1:
        return
    expected = stats.ttest_rel(ours, theirs)
    assert paired(dict(enumerate(ours)), dict(enumerate(theirs))).p == pytest.approx(expected.pvalue, rel=1e-6)


def test_both_by_hand() -> None:
    """Ours 12, 14, 16 and theirs 10, 11, 12, three seeds.

    Paired: the differences are 2, 3, 4, with mean 3 and sample deviation 1, so t = 3 / (1 / sqrt 3) = 5.196 with 2
    degrees of freedom. For 2 degrees the two-sided p-value is 1 - t / sqrt(t^2 + 2) = 1 - 5.196 / sqrt 29 = 0.0351: a
    win.

    Welch: means 14 and 11, variances 4 and 1, so t = 3 / sqrt(4/3 + 1/3) = 3 / 1.2910 = 2.3238 with
    (5/3)^2 / ((4/3)^2 / 2 + (1/3)^2 / 2) = 2.7778 / 0.9444 = 2.9412 degrees of freedom. The p-value lies between that
    of 2 degrees, 1 - 2.3238 / sqrt 7.4 = 0.1457, and that of 4 degrees, 1 - x (3 - x^2) / 2 with
    x = 2.3238 / sqrt(4 + 5.4) = 0.7579, which is 0.0808: a tie. Pairing makes the difference.
    """
    by_pairs = paired({0: 12, 1: 14, 2: 16}, {0: 10, 1: 11, 2: 12})
    assert by_pairs.p == pytest.approx(1 - math.sqrt(27) / math.sqrt(29)) and by_pairs.p == pytest.approx(
        0.0351, abs=5e-5
    )
    assert by_pairs.verdict == "win"
    by_means = welch([12, 14, 16], [10, 11, 12])
    assert by_means.p is not None and 0.0808 < by_means.p < 0.1457 and by_means.verdict == "tie"
    assert by_means.p == pytest.approx(2 * stats.t.sf(2.32379, 2.94118), abs=1e-5)
    assert welch([10, 11, 12], [12, 14, 16]).difference == -3


def test_printed_values_give_what_the_runs_give() -> None:
    ours, theirs = [80.1, 83.0, 78.2], [70.2, 75.3, 71.0, 69.9]
    printed = welch_from_moments(np.mean(ours), np.std(ours, ddof=1), 3, np.mean(theirs), np.std(theirs, ddof=1), 4)
    assert printed.p == pytest.approx(welch(ours, theirs).p)


def test_without_spread_only_the_difference_decides() -> None:
    assert welch([5.1, 5.1, 5.1], [5.1, 5.1, 5.1]).verdict == "tie"
    assert welch([5.1, 5.1], [5.0, 5.0]).verdict == "win"
    assert paired({0: 1.1, 1: 2.1}, {0: 2.1, 1: 3.1}).verdict == "loss"
    assert paired({0: 1.1, 1: 2.1}, {0: 1.1, 1: 2.1}).p == 1
    assert welch_from_moments(60.0, 0.0, 3, 50.0, 0.0, 3).p == 0
    one_sided = stats.ttest_ind_from_stats(60.0, 0.0, 3, 57.0, 2.0, 3, equal_var=False)
    assert welch_from_moments(60.0, 0.0, 3, 57.0, 2.0, 3).p == pytest.approx(one_sided.pvalue)
    assert paired({0: 0.3, 1: 0.3, 2: 0.3}, {0: 0.1 + 0.2, 1: 0.1 + 0.2, 2: 0.1 + 0.2}).verdict == "tie"


def test_too_few_seeds_are_said_to_be_untested() -> None:
    assert welch([50.0], [40.0, 41.0]).verdict == "untested" and welch([50.0], [40.0, 42.0]).difference == 9
    assert paired({0: 50.0, 1: 51.0}, {1: 49.0, 2: 40.0}) == Comparison(2.0, None)
    assert paired({0: 50.0}, {1: 49.0}).verdict == "untested" and welch([], [1.0, 2.0]).p is None
    some = paired({0: 1.0, 1: 2.0, 2: 4.0}, {0: 0.0, 2: 2.0, 5: 9.0})
    assert some.p == pytest.approx(stats.ttest_rel([1.0, 4.0], [0.0, 2.0]).pvalue)


def test_holm_by_hand() -> None:
    """Four tests: .011 <= .05/4 and .015 <= .05/3 hold, .026 > .05/2 does not, and then .02-like ones fall with it.

    Without correction all four are below .05.
    """
    family = [
        Comparison(1, 0.026),
        Comparison(-1, 0.011),
        Comparison(1, None),
        Comparison(1, 0.015),
        Comparison(1, 0.04),
    ]
    assert [c.verdict for c in family] == ["win", "loss", "untested", "win", "win"]
    assert holm(family) == ["tie", "loss", "untested", "win", "tie"]
    assert holm([]) == [] and holm([Comparison(1, 0.05)]) == ["win"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_between_bonferroni_and_no_correction(values: list[float]) -> None:
    kept = [verdict == "win" for verdict in holm(Comparison(1.0, p) for p in values)]
    assert all(p <= 0.05 for p, firm in zip(values, kept, strict=True) if firm)
    assert all(firm for p, firm in zip(values, kept, strict=True) if p <= 0.05 / len(values))


def test_tally() -> None:
    tally = Tally.of(["win", "tie", "win", "untested"])
    assert tally == Tally(2, 1, 0, 1) and str(tally) == "2 / 1 / 0 (1 not tested)"
    assert str(tally + Tally(1, 1, 1, -1)) == "3 / 2 / 1"
