"""SAGE against each baseline, counted: by Welch's test on the printed numbers, and by both tests on finished runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from unissl.paper.experiments.experiment import Cell, Column, Experiment, Variant
from unissl.paper.experiments.registry import get_experiment
from unissl.paper.grid.plan import Scale
from unissl.paper.tables.collect import Found, gather, is_ours, is_supervised
from unissl.paper.tables.sheet import Sheet, Tables, plain_rows
from unissl.paper.tables.significance import UNTESTED, Comparison, Tally, holm, paired, welch, welch_of_printed

PRINTED_SEEDS = 3
PROFILES = {"uniform": "uniform", "long-tailed": "long-tailed", "arbitrary": "arbitrary"}
OTHER_MIX = "uniform"
"""Where STL-10, whose mix nobody knows, is counted; the paper does so too."""
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
"""The paper's own counts, by the class mix of the pool and in all."""


@dataclass(frozen=True)
class Duel:
    """SAGE against one baseline in one setting."""

    experiment: str
    rival: str
    title: str
    setting: str
    profile: str
    comparison: Comparison


Compare = Callable[[Experiment, Variant, Column], Comparison]


def significance_tables(scale: Scale, root: Path | str, reads: Sequence[str]) -> Tables:
    """The printed numbers first, then our runs of that scale, where there are any."""
    experiments = [get_experiment(name) for name in reads]
    by_print = duels(experiments, printed_comparison, ask_unprinted=True)
    smaller = duels(experiments, partial(printed_comparison, population=True), ask_unprinted=True)
    sheets = [
        counted(
            "Welch's t-test on the printed means and deviations (n = 3)",
            by_print,
            published=True,
            also=(_if_population(smaller),),
        ),
        published_counts(by_print),
    ]
    tidy = [_tidy("printed", "welch", by_print)]
    found = {experiment.name: gather(experiment, scale, root) for experiment in experiments}
    if any(cell.summaries for cells in found.values() for cell in cells.values()):
        for reading in ("best", "last"):
            for name, test in (("paired t-test", _paired), ("Welch's t-test", _welch)):
                ours = duels(experiments, _on_runs(found, reading, test))
                sheets.append(counted(f"{name} on our runs, {scale} scale, accuracy: {reading}", ours))
                tidy.append(_tidy(f"{scale} {reading}", name, ours))
    head = ("source", "test", "experiment", "baseline", "setting", "difference", "p", "verdict", "verdict_holm")
    return Tables(tuple(sheets), Sheet("significance", head, tuple(row for part in tidy for row in part), words=5))


def duels(experiments: Iterable[Experiment], compare: Compare, ask_unprinted: bool = False) -> list[Duel]:
    """SAGE against every baseline in every setting that both are planned for.

    ``ask_unprinted`` adds what the paper counts without printing it: the methods of the other tables on STL-10, which
    alone makes its 195 comparisons.
    """
    made: list[Duel] = []
    rivals: dict[str, Variant] = {}
    for experiment in experiments:
        own = [v for v in experiment.variants if not is_ours(v) and not is_supervised(v)]
        for setting in experiment.settings:
            for rival in own:
                found = compare(experiment, rival, setting)
                made.append(Duel(experiment.name, rival.name, rival.title, setting.name, profile_of(setting), found))
            if ask_unprinted and setting.name == "stl10":
                missing = [variant for name, variant in rivals.items() if name not in {v.name for v in own}]
                made += [Duel(experiment.name, v.name, v.title, "stl10", OTHER_MIX, UNTESTED) for v in missing]
        rivals |= {variant.name: variant for variant in own}
    return made


def profile_of(setting: Column) -> str:
    return PROFILES.get(str(setting.tree.get("split", {}).get("pool_distribution")), OTHER_MIX)


def printed_comparison(experiment: Experiment, rival: Variant, setting: Column, population: bool = False) -> Comparison:
    """Welch's test on what is printed. The paper does not say whether its deviations are those of the sample, which is
    what a t-test wants, or those of a ``population``, which are smaller."""
    widen = math.sqrt(PRINTED_SEEDS / (PRINTED_SEEDS - 1)) if population else 1.0
    ours, theirs = (experiment.printed.get((name, setting.name)) for name in ("sage", rival.name))
    if ours is None or theirs is None or ours.sd is None or theirs.sd is None:
        return UNTESTED
    return welch_of_printed(ours.mean, widen * ours.sd, PRINTED_SEEDS, theirs.mean, widen * theirs.sd, PRINTED_SEEDS)


def published_counts(found: Sequence[Duel]) -> Sheet:
    """What the paper counts."""
    titles = {duel.rival: duel.title for duel in found} | {"all": "all"}
    rows = tuple((titles[name], *counts) for name, counts in PUBLISHED.items())
    return Sheet("As published: win / tie / loss", ("SAGE against", *PROFILES.values(), "total"), rows)


def counted(title: str, found: Sequence[Duel], published: bool = False, also: tuple[str, ...] = ()) -> Sheet:
    """Win / tie / loss by class mix and in all; after Holm's correction over all comparisons; the paper's counts."""
    firm = holm(duel.comparison for duel in found)
    groups = list(PROFILES.values())
    rows = []
    for name, members in _by_rival(found).items():
        plain = {g: Tally.of(found[i].comparison.verdict for i in members if found[i].profile == g) for g in groups}
        total = Tally.of(found[i].comparison.verdict for i in members)
        cells = (*(str(plain[g]) for g in groups), str(total), str(Tally.of(firm[i] for i in members)))
        label = "all" if name == "all" else found[members[0]].title
        rows.append((label, *cells, *(PUBLISHED[name][-1:] if published else ())))
    head = ("SAGE against", *groups, "total", "total after Holm", *(("published total",) if published else ()))
    tested = sum(duel.comparison.p is not None for duel in found)
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
    return Sheet(title, head, tuple(rows), (*notes, *also))


def _if_population(found: Sequence[Duel]) -> str:
    plain, firm = Tally.of(d.comparison.verdict for d in found), Tally.of(holm(d.comparison for d in found))
    return f"If the printed deviations are those of a population (divided by n), it is {plain}, and {firm} after Holm."


def _by_rival(found: Sequence[Duel]) -> Mapping[str, list[int]]:
    members: dict[str, list[int]] = {}
    for number, duel in enumerate(found):
        members.setdefault(duel.rival, []).append(number)
    return {**members, "all": list(range(len(found)))}


def _on_runs(
    found: Mapping[str, Mapping[Cell, Found]],
    reading: str,
    test: Callable[[dict[int, float], dict[int, float]], Comparison],
) -> Compare:
    def compare(experiment: Experiment, rival: Variant, setting: Column) -> Comparison:
        cells = found[experiment.name]
        ours, theirs = (cells.get((name, setting.name), Found()).by_seed(reading) for name in ("sage", rival.name))
        return test(ours, theirs)

    return compare


def _paired(ours: dict[int, float], theirs: dict[int, float]) -> Comparison:
    return paired(ours, theirs)


def _welch(ours: dict[int, float], theirs: dict[int, float]) -> Comparison:
    return welch(list(ours.values()), list(theirs.values()))


def _tidy(source: str, test: str, found: Sequence[Duel]) -> tuple[tuple[str, ...], ...]:
    firm = holm(duel.comparison for duel in found)
    rows = [
        (
            source,
            test,
            d.experiment,
            d.rival,
            d.setting,
            d.comparison.difference,
            d.comparison.p,
            d.comparison.verdict,
            after,
        )
        for d, after in zip(found, firm, strict=True)
    ]
    return plain_rows([tuple(None if value != value else value for value in row) for row in rows])
