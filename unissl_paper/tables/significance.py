"""Significance of the difference between two methods: two-sided t-tests, one per column.

The *paired* test compares run with run: both methods have the same split in each seed, so the effect of the split
cancels out. *Welch's* test compares means with different variances; printed means and deviations are enough for it.
With many tests at .05 some fall below it by chance, so *Holm's* step-down correction (Holm-Bonferroni) is computed too:
the smallest of m p-values must be at most .05 / m, the next one .05 / (m - 1), and so on to the first that is not; the
probability of even one false difference among all of them is then at most .05.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import stats

LEVEL = 0.05
Verdict = Literal["win", "tie", "loss", "untested"]


@dataclass(frozen=True)
class Comparison:
    """Mean of SAGE minus that of the baseline, and its p-value; None if a side has fewer than two runs."""

    difference: float
    p: float | None

    @property
    def verdict(self) -> Verdict:
        """Win or loss if the p-value is below the level, without correction."""
        return "untested" if self.p is None else _verdict(self.difference, self.p < LEVEL)


UNTESTED = Comparison(math.nan, None)


def welch(sage: Sequence[float], baseline: Sequence[float]) -> Comparison:
    """Compare the means of runs, whatever their seeds."""
    if min(len(sage), len(baseline)) < 2:
        return _untested(sage, baseline)
    return welch_from_moments(*_mean_and_sd(sage), len(sage), *_mean_and_sd(baseline), len(baseline))


def welch_from_moments(mean: float, sd: float, n: int, other_mean: float, other_sd: float, other_n: int) -> Comparison:
    """The same from means, sample standard deviations and numbers of runs."""
    difference = mean - other_mean
    variance, other_variance = sd**2 / n, other_sd**2 / other_n  # of the means
    total = variance + other_variance
    if total == 0:
        return Comparison(difference, _p_without_variance(difference))
    degrees = total**2 / (variance**2 / (n - 1) + other_variance**2 / (other_n - 1))  # Welch and Satterthwaite
    return Comparison(difference, _two_sided(difference / math.sqrt(total), degrees))


def paired(sage: Mapping[int, float], baseline: Mapping[int, float]) -> Comparison:
    """Compare results by seed; only seeds that both have count."""
    seeds = sorted(sage.keys() & baseline.keys())
    # Equal accuracies may differ in their last bits, which must not count as a small constant difference.
    differences = [round(sage[seed] - baseline[seed], 9) for seed in seeds]
    if len(seeds) < 2:
        return _untested([sage[seed] for seed in seeds], [baseline[seed] for seed in seeds])
    mean, sd = _mean_and_sd(differences)
    if sd == 0:
        return Comparison(mean, _p_without_variance(mean))
    return Comparison(mean, _two_sided(mean / (sd / math.sqrt(len(seeds))), len(seeds) - 1))


def holm(comparisons: Iterable[Comparison]) -> list[Verdict]:
    """Verdicts of a family of comparisons after Holm's correction, in their order; untested ones do not count."""
    family = list(comparisons)
    tested = [(c.p, number) for number, c in enumerate(family) if c.p is not None]
    significant: set[int] = set()
    for rank, (p, number) in enumerate(sorted(tested)):
        if p > LEVEL / (len(tested) - rank):
            break
        significant.add(number)
    return [
        "untested" if comparison.p is None else _verdict(comparison.difference, number in significant)
        for number, comparison in enumerate(family)
    ]


@dataclass(frozen=True)
class Tally:
    """Numbers of wins, ties and losses of SAGE, and of untested comparisons."""

    win: int = 0
    tie: int = 0
    loss: int = 0
    untested: int = 0

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> Tally:
        counts = Counter(verdicts)
        return cls(counts["win"], counts["tie"], counts["loss"], counts["untested"])

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.win + other.win, self.tie + other.tie, self.loss + other.loss, self.untested + other.untested)

    def __str__(self) -> str:
        untested = f" ({self.untested} not tested)" if self.untested else ""
        return f"{self.win} / {self.tie} / {self.loss}{untested}"


def _verdict(difference: float, significant: bool) -> Verdict:
    if not significant:
        return "tie"
    return "win" if difference > 0 else "loss"


def _two_sided(t: float, degrees: float) -> float:
    return float(2 * stats.t.sf(abs(t), degrees))


def _p_without_variance(difference: float) -> float:
    """Limit of the p-value as the variance goes to zero."""
    return 1.0 if difference == 0 else 0.0


def _mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation, which is exactly 0 for equal values."""
    mean = math.fsum(values) / len(values)
    if len(set(values)) == 1:
        return values[0], 0.0
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _untested(sage: Sequence[float], baseline: Sequence[float]) -> Comparison:
    if not sage or not baseline:
        return UNTESTED
    return Comparison(math.fsum(sage) / len(sage) - math.fsum(baseline) / len(baseline), None)
