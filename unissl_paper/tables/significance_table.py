"""SAGE against each baseline as win / tie / loss counts: by Welch's test on the printed numbers, and by both tests on
finished runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from unissl_paper.experiments import get_experiment
from unissl_paper.experiments.experiment import Cell, Column, Experiment, Scale, Variant
from unissl_paper.tables.collect import CellResult, collect_results
from unissl_paper.tables.sheet import Sheet, Tables, csv_rows
from unissl_paper.tables.significance import UNTESTED, Comparison, Tally, holm, paired, welch, welch_from_moments

PRINTED_SEEDS = 3
DISTRIBUTIONS = ("uniform", "long-tailed", "arbitrary")
DEFAULT_DISTRIBUTION = "uniform"
"""Where STL-10, whose class distribution is unknown, is counted, as in the paper."""
PUBLISHED = {
    "fixmatch": ("4 / 5 / 0", "5 / 3 / 0", "2 / 6 / 0", "11 / 14 / 0"),
    "freematch": ("5 / 2 / 0", "5 / 1 / 0", "5 / 1 / 0", "15 / 4 / 0"),
    "softmatch": ("5 / 2 / 0", "4 / 2 / 0", "6 / 0 / 0", "15 / 4 / 0"),
    "cgmatch": ("3 / 6 / 0", "6 / 2 / 0", "3 / 5 / 0", "12 / 13 / 0"),
    "acr": ("5 / 2 / 0", "4 / 2 / 0", "3 / 3 / 0", "12 / 7 / 0"),
    "simpro": ("7 / 0 / 0", "6 / 0 / 0", "6 / 0 / 0", "19 / 0 / 0"),
    "cdmad": ("6 / 1 / 0", "5 / 1 / 0", "4 / 2 / 0", "15 / 4 / 0"),
    "meta-expert": ("9 / 0 / 0", "8 / 0 / 0", "5 / 3 / 0", "22 / 3 / 0"),
    "cpg": ("8 / 1 / 0", "6 / 2 / 0", "1 / 7 / 0", "15 / 10 / 0"),
    "all": ("52 / 19 / 0", "49 / 13 / 0", "35 / 27 / 0", "136 / 59 / 0"),
}
"""The paper's counts, by the class distribution of the pool and in total."""


@dataclass(frozen=True)
class Match:
    """SAGE against one baseline in one column."""

    experiment: str
    baseline: str
    title: str
    column: str
    distribution: str
    comparison: Comparison


Compare = Callable[[Experiment, Variant, Column], Comparison]


def significance_tables(scale: Scale, root: Path | str, reads: Sequence[str]) -> Tables:
    """Counts of the printed numbers, then of our runs of that scale, if there are any."""
    experiments = [get_experiment(name) for name in reads]
    printed = matches(experiments, printed_comparison, include_unprinted=True)
    population = matches(experiments, partial(printed_comparison, population=True), include_unprinted=True)
    sheets = [
        count_sheet(
            "Welch's t-test on the printed means and deviations (n = 3)",
            printed,
            published=True,
            more_notes=(_population_note(population),),
        ),
        published_sheet(printed),
    ]
    rows = [_csv_rows("printed", "welch", printed)]
    results = {experiment.name: collect_results(experiment, scale, root) for experiment in experiments}
    if any(result.summaries for cells in results.values() for result in cells.values()):
        for metric in ("best", "last"):
            for name, test in (("paired t-test", paired), ("Welch's t-test", _welch)):
                run_matches = matches(experiments, _compare_runs(results, metric, test))
                sheets.append(count_sheet(f"{name} on our runs, {scale} scale, accuracy: {metric}", run_matches))
                rows.append(_csv_rows(f"{scale} {metric}", name, run_matches))
    head = ("source", "test", "experiment", "baseline", "column", "difference", "p", "verdict", "verdict_holm")
    return Tables(tuple(sheets), Sheet("significance", head, tuple(row for part in rows for row in part), words=5))


def matches(experiments: Iterable[Experiment], compare: Compare, include_unprinted: bool = False) -> list[Match]:
    """SAGE against every baseline in every column that is planned for both.

    ``include_unprinted`` adds what the paper counts without printing it: the methods of the other tables on STL-10,
    which makes up its 195 comparisons.
    """
    results: list[Match] = []
    earlier: dict[str, Variant] = {}
    for experiment in experiments:
        baselines = [v for v in experiment.variants if not v.is_sage and not v.is_supervised]
        names = {v.name for v in baselines}
        for column in experiment.columns:
            for v in baselines:
                comparison = compare(experiment, v, column)
                results.append(
                    Match(experiment.name, v.name, v.title, column.name, pool_distribution(column), comparison)
                )
            if include_unprinted and column.name == "stl10":
                unprinted = [v for v in earlier.values() if v.name not in names]
                results += [
                    Match(experiment.name, v.name, v.title, "stl10", DEFAULT_DISTRIBUTION, UNTESTED) for v in unprinted
                ]
        earlier |= {v.name: v for v in baselines}
    return results


def pool_distribution(column: Column) -> str:
    distribution = str(column.tree.get("split", {}).get("pool_distribution"))
    return distribution if distribution in DISTRIBUTIONS else DEFAULT_DISTRIBUTION


def printed_comparison(
    experiment: Experiment, baseline: Variant, column: Column, population: bool = False
) -> Comparison:
    """Welch's test on printed numbers. The paper does not state whether its deviations are sample deviations, which a
    t-test needs, or those of a ``population``, which are smaller."""
    factor = math.sqrt(PRINTED_SEEDS / (PRINTED_SEEDS - 1)) if population else 1.0
    one, other = (experiment.printed.get((name, column.name)) for name in ("sage", baseline.name))
    if one is None or other is None or one.sd is None or other.sd is None:
        return UNTESTED
    return welch_from_moments(one.mean, factor * one.sd, PRINTED_SEEDS, other.mean, factor * other.sd, PRINTED_SEEDS)


def published_sheet(results: Sequence[Match]) -> Sheet:
    """The paper's counts."""
    titles = {match.baseline: match.title for match in results} | {"all": "all"}
    rows = tuple((titles[name], *counts) for name, counts in PUBLISHED.items())
    return Sheet("As published: win / tie / loss", ("SAGE against", *DISTRIBUTIONS, "total"), rows)


def count_sheet(
    title: str, results: Sequence[Match], published: bool = False, more_notes: tuple[str, ...] = ()
) -> Sheet:
    """Win / tie / loss by class distribution and in total; after Holm's correction over all comparisons; the paper's
    counts."""
    corrected = holm(match.comparison for match in results)
    rows = []
    for name, members in _by_baseline(results).items():
        verdicts = [results[i].comparison.verdict for i in members]
        groups = [results[i].distribution for i in members]
        tallies = [
            Tally.of(verdict for verdict, group in zip(verdicts, groups, strict=True) if group == distribution)
            for distribution in DISTRIBUTIONS
        ]
        cells = [str(tally) for tally in (*tallies, Tally.of(verdicts), Tally.of(corrected[i] for i in members))]
        label = "all" if name == "all" else results[members[0]].title
        rows.append((label, *cells, *(PUBLISHED[name][-1:] if published else ())))
    head = ("SAGE against", *DISTRIBUTIONS, "total", "total after Holm", *(("published total",) if published else ()))
    tested = sum(match.comparison.p is not None for match in results)
    notes = [
        "win / tie / loss of SAGE, two-sided at .05 for each comparison by itself; after Holm: with the chance of "
        f"even one false difference among all {tested} comparisons held below .05.",
    ]
    if published:
        notes.append(
            "not tested: counted by the paper, but not printed (STL-10 for the methods that Table 3 leaves out). The "
            "paper says pairwise t-test and prints no correction; paired tests need its runs. Deviations are taken as "
            "sample deviations."
        )
    return Sheet(title, head, tuple(rows), (*notes, *more_notes))


def _population_note(results: Sequence[Match]) -> str:
    plain = Tally.of(match.comparison.verdict for match in results)
    corrected = Tally.of(holm(match.comparison for match in results))
    both = f"{plain}, and {corrected} after Holm"
    return f"If the printed deviations are those of a population (divided by n), it is {both}."


def _by_baseline(results: Sequence[Match]) -> Mapping[str, list[int]]:
    members: dict[str, list[int]] = {}
    for number, match in enumerate(results):
        members.setdefault(match.baseline, []).append(number)
    return {**members, "all": list(range(len(results)))}


def _compare_runs(
    results: Mapping[str, Mapping[Cell, CellResult]],
    metric: str,
    test: Callable[[dict[int, float], dict[int, float]], Comparison],
) -> Compare:
    def compare(experiment: Experiment, baseline: Variant, column: Column) -> Comparison:
        cells = results[experiment.name]
        pair = (cells.get((name, column.name), CellResult()).by_seed(metric) for name in ("sage", baseline.name))
        return test(*pair)

    return compare


def _welch(sage: dict[int, float], baseline: dict[int, float]) -> Comparison:
    return welch(list(sage.values()), list(baseline.values()))


def _csv_rows(source: str, test: str, results: Sequence[Match]) -> tuple[tuple[str, ...], ...]:
    corrected = holm(match.comparison for match in results)
    rows = []
    for match, verdict in zip(results, corrected, strict=True):
        comparison = match.comparison
        difference = None if math.isnan(comparison.difference) else comparison.difference
        numbers = (difference, comparison.p, comparison.verdict, verdict)
        rows.append((source, test, match.experiment, match.baseline, match.column, *numbers))
    return csv_rows(rows)
