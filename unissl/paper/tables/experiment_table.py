"""The table of an experiment: our runs, and beside them what was printed.

Printed numbers are those of full-size runs. They stand in the same sheet as ours only where ours are full-size too; in
miniature they have a sheet of their own that says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from unissl.errors import UserError
from unissl.paper.experiments.experiment import Cell, Column, Experiment, Printed
from unissl.paper.grid.mini import BUDGET
from unissl.paper.grid.mini import DATA as STAND_INS
from unissl.paper.grid.plan import ALL, Part, Scale
from unissl.paper.tables.collect import PAPERS, READINGS, Found, data_of, gather, mean_and_sd
from unissl.paper.tables.differences import difference_sheet
from unissl.paper.tables.gain import RULE, average, gains
from unissl.paper.tables.sheet import HOLE, Sheet, Tables, plain_rows, spread

PUBLISHED = "published (best)"
TIDY_HEAD = (
    *("experiment", "scale", "variant", "setting", "reading", "n", "mean", "sd", "seeds", "holes"),
    *("published_full_size_mean", "published_full_size_sd"),
)


def experiment_tables(experiment: Experiment, scale: Scale, root: Path | str, part: Part = ALL) -> Tables:
    """Ours with the printed numbers beside them (full) or after them (mini)."""
    if not experiment.settings:
        raise UserError(
            f"{experiment.name} is no grid of runs and has no table; draw it with 'unissl paper figure', or choose "
            f"one of {', '.join(experiment.reads) or 'the tables in unissl paper list'}."
        )
    cells = gather(experiment, scale, root, part)
    if not cells:
        raise UserError("No run is chosen; name at least one row, column and seed, or leave out --only and the like.")
    columns = [setting for setting in experiment.settings if any(setting.name == name for _, name in cells)]
    sheets = [measured(experiment, scale, cells, columns)]
    differences = difference_sheet(experiment, cells, columns)
    if differences is not None:
        sheets.append(differences)
    if scale == "mini" and experiment.printed:
        sheets.append(published(experiment))
    return Tables(tuple(sheets), tidy(experiment, scale, cells))


def measured(experiment: Experiment, scale: Scale, cells: Mapping[Cell, Found], columns: Sequence[Column]) -> Sheet:
    """A line for each method and way to read its accuracy."""
    planned = max(len(found.summaries) + len(found.holes) for found in cells.values())
    readings = dict(READINGS)
    if any("auroc" in summary for found in cells.values() for summary in found.summaries.values()):
        readings["auroc"] = "AUROC"
    rows = []
    for variant in (v for v in experiment.variants if any(v.name == name for name, _ in cells)):
        for reading, word in readings.items():
            values = [list(cells[variant.name, s.name].by_seed(reading).values()) for s in columns]
            rows.append((variant.title, word, *(_cell(v, planned) for v in values), _average(values)))
        if scale == "full":
            rows.append(_printed_row(experiment, columns, variant.name, (variant.title, PUBLISHED)))
    head = ("method", "accuracy", *(setting.title for setting in columns), "average")
    title = (
        f"{experiment.title}: {'full size' if scale == 'full' else 'miniature, not comparable with published numbers'}"
    )
    notes = [*_stand_ins(scale, columns), *_notes(experiment, planned, cells), *_holes(cells)]
    return Sheet(title, head, tuple(rows), tuple(notes), words=2)


def published(experiment: Experiment) -> Sheet:
    """What the paper prints, by itself."""
    shown = [v for v in experiment.variants if any((v.name, s.name) in experiment.printed for s in experiment.settings)]
    rows = tuple(_printed_row(experiment, experiment.settings, variant.name, (variant.title,)) for variant in shown)
    head = ("method", *(setting.title for setting in experiment.settings), "average")
    notes = ["Full-size runs of the paper: best of a run's evaluations, mean ± deviation as printed."]
    found = gains(experiment, {cell: printed.mean for cell, printed in experiment.printed.items()})
    notes += [f"Gain on {gain.data} by the printed means: {gain.points:+.2f} over {gain.rival}." for gain in found]
    return Sheet(f"{experiment.title}: as published, at full size", head, rows, tuple(notes))


def tidy(experiment: Experiment, scale: Scale, cells: Mapping[Cell, Found]) -> Sheet:
    """A line for each method, setting and reading, with full digits."""
    rows: list[tuple[object, ...]] = []
    for (variant, setting), found in cells.items():
        for reading in READINGS:
            by_seed = found.by_seed(reading)
            mean, sd = mean_and_sd(by_seed.values()) or (None, None)
            printed = experiment.printed.get((variant, setting)) if reading == PAPERS else None
            seeds = " ".join(str(seed) for seed in sorted(by_seed))
            holes = "; ".join(f"{seed}: {reason}" for seed, reason in sorted(found.holes.items()))
            numbers = (len(by_seed), mean, sd, seeds, holes)
            beside = (None, None) if printed is None else (printed.mean, printed.sd)
            rows.append((experiment.name, scale, variant, setting, reading, *numbers, *beside))
    return Sheet(experiment.title, TIDY_HEAD, plain_rows(rows), words=5)


def _cell(values: Sequence[float], planned: int) -> str:
    found = mean_and_sd(values)
    if found is None:
        return HOLE
    return spread(*found) + ("" if len(values) == planned else f" (n = {len(values)})")


def _average(values: Sequence[Sequence[float]]) -> str:
    """Over all settings; of some of them it would be compared with what it is not."""
    return f"{statistics.fmean(statistics.fmean(v) for v in values):.2f}" if all(values) else HOLE


def _printed_row(
    experiment: Experiment, columns: Sequence[Column], variant: str, words: tuple[str, ...]
) -> tuple[str, ...]:
    found: list[Printed | None] = [experiment.printed.get((variant, s.name)) for s in columns]
    means = [printed.mean for printed in found if printed is not None]
    average_text = f"{statistics.fmean(means):.2f}" if len(means) == len(found) else HOLE
    return (*words, *(HOLE if p is None else spread(p.mean, p.sd) for p in found), average_text)


def _notes(experiment: Experiment, planned: int, cells: Mapping[Cell, Found]) -> list[str]:
    spread_over = (
        f"mean ± sample standard deviation (n - 1) over {planned} seeds" if planned > 1 else "one seed, so no deviation"
    )
    notes = [
        f"Per cent; {spread_over}; n is said where runs are missing.",
        "last: after the last step. mean of last 20: of the last 20 evaluations. best: of all evaluations, chosen on "
        "the test images and therefore optimistic; it is what the paper prints.",
    ]
    taken = {cell: mean_and_sd(found.by_seed(PAPERS).values()) for cell, found in cells.items()}
    found = gains(experiment, {cell: pair[0] for cell, pair in taken.items() if pair is not None})
    notes += [
        f"Gain on {gain.data} (best): {gain.ours:.2f} - {gain.theirs:.2f} ({gain.rival}) = {gain.points:+.2f}."
        for gain in found
    ]
    if found:
        mean = f" Over the data sets of this table: {average(found):+.2f}." if len(found) > 1 else ""
        notes.append(RULE + mean)
    return [*notes, experiment.note] if experiment.note else notes


def _stand_ins(scale: Scale, columns: Sequence[Column]) -> list[str]:
    """Which small data set is there in the place of which."""
    if scale == "full":
        return []
    small = {data_of(column): STAND_INS[data_of(column)]["data"]["name"] for column in columns}
    listed = ", ".join(f"{there} for {full}" for full, there in small.items())
    evaluations = f"with {BUDGET['evaluations']} evaluations in all, the mean of the last 20 is much of the training."
    return [f"Miniature: {listed}; gammas and steps are smaller, too (unissl/paper/grid/mini.py); {evaluations}"]


def _holes(cells: Mapping[Cell, Found]) -> list[str]:
    """Missing runs by reason, since a grid that was not begun would fill a page one by one."""
    by_reason: dict[str, list[str]] = {}
    for (variant, setting), found in cells.items():
        for seed, reason in sorted(found.holes.items()):
            by_reason.setdefault(reason, []).append(f"{variant} {setting} seed {seed}")
    return [
        f"{len(names)} of {sum(len(f.summaries) + len(f.holes) for f in cells.values())} runs {reason}: "
        f"{', '.join(names[:6])}{f' and {len(names) - 6} more' if len(names) > 6 else ''}."
        for reason, names in by_reason.items()
    ]
