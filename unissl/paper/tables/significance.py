"""Is a difference between two methods more than the luck of the seeds? Two-sided t-tests, one per setting.

*Paired* compares run with run: both methods saw the same split in each seed, so what a lucky split gives to both
cancels out. *Welch* compares mean with mean and lets the two spreads differ; printed means and deviations are enough
for it. With many tests at .05 some come out below it by chance alone, so *Holm's* step-down rule (Holm-Bonferroni) is
counted beside: the smallest of m p-values must stay within .05 / m, the next one within .05 / (m - 1), and so on to the
first that does not; the chance of even one false difference among all of them is then at most .05.
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
    """Our mean minus theirs, and its p-value; None where fewer than two runs of a side leave nothing to test with."""

    difference: float
    p: float | None

    @property
    def verdict(self) -> Verdict:
        """Win or loss where the p-value is below the level, without correction."""
        return "untested" if self.p is None else _verdict(self.difference, self.p < LEVEL)


UNTESTED = Comparison(math.nan, None)


def welch(ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """Means of runs, whatever their seeds are."""
    if min(len(ours), len(theirs)) < 2:
        return _only_means(ours, theirs)
    return welch_of_printed(*_mean_and_sd(ours), len(ours), *_mean_and_sd(theirs), len(theirs))


def welch_of_printed(mean: float, sd: float, n: int, other_mean: float, other_sd: float, other_n: int) -> Comparison:
    """The same from means, sample standard deviations and numbers of runs."""
    difference = mean - other_mean
    one, other = sd**2 / n, other_sd**2 / other_n
    if one + other == 0:
        return Comparison(difference, _without_spread(difference))
    degrees = (one + other) ** 2 / (one**2 / (n - 1) + other**2 / (other_n - 1))  # Welch and Satterthwaite
    return Comparison(difference, _two_sided(difference / math.sqrt(one + other), degrees))


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Comparison:
    """Results by seed; only seeds that both have are compared."""
    seeds = sorted(ours.keys() & theirs.keys())
    # Equal accuracies may differ in their last bits, which must not pass for a small but steady difference.
    differences = [round(ours[seed] - theirs[seed], 9) for seed in seeds]
    if len(seeds) < 2:
        return _only_means([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
    mean, sd = _mean_and_sd(differences)
    if sd == 0:
        return Comparison(mean, _without_spread(mean))
    return Comparison(mean, _two_sided(mean / (sd / math.sqrt(len(seeds))), len(seeds) - 1))


def holm(comparisons: Iterable[Comparison]) -> list[Verdict]:
    """The verdicts of a family of comparisons after Holm's correction, in their order. Untested ones do not count."""
    family = list(comparisons)
    tested = [(c.p, number) for number, c in enumerate(family) if c.p is not None]
    firm: set[int] = set()
    for rank, (p, number) in enumerate(sorted(tested)):
        if p > LEVEL / (len(tested) - rank):
            break
        firm.add(number)
    return [
        "untested" if comparison.p is None else _verdict(comparison.difference, number in firm)
        for number, comparison in enumerate(family)
    ]


@dataclass(frozen=True)
class Tally:
    """How often we win, tie and lose; and how often nothing could be said."""

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
        unknown = f" ({self.untested} not tested)" if self.untested else ""
        return f"{self.win} / {self.tie} / {self.loss}{unknown}"


def _verdict(difference: float, significant: bool) -> Verdict:
    if not significant:
        return "tie"
    return "win" if difference > 0 else "loss"


def _two_sided(t: float, degrees: float) -> float:
    return float(2 * stats.t.sf(abs(t), degrees))


def _without_spread(difference: float) -> float:
    """The limit of the p-value as the spread goes to nothing."""
    return 1.0 if difference == 0 else 0.0


def _mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; equal values have none, whatever rounding makes of their mean."""
    mean = math.fsum(values) / len(values)
    if len(set(values)) == 1:
        return values[0], 0.0
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _only_means(ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    if not ours or not theirs:
        return UNTESTED
    return Comparison(math.fsum(ours) / len(ours) - math.fsum(theirs) / len(theirs), None)
