"""The table of an experiment: our runs and the printed numbers.

Printed numbers come from full-size runs. They share a sheet with ours only if ours are full-size too; at other scales
they have a sheet of their own.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from unissl.errors import UserError
from unissl_paper.experiments.experiment import Cell, Column, Experiment, Printed, Scale
from unissl_paper.grid.plan import ALL, Selection, format_seeds, seeds_note
from unissl_paper.grid.scales import MINI_BUDGET, MINI_DATA
from unissl_paper.tables.collect import METRICS, PAPER_METRIC, CellResult, cell_means, collect_results, mean_and_sd
from unissl_paper.tables.differences import difference_sheet
from unissl_paper.tables.gain import RULE, average_gain, gains
from unissl_paper.tables.sheet import EMPTY, Sheet, Tables, csv_rows, format_mean

Cells = Mapping[Cell, CellResult]
PUBLISHED = "published (best)"
SIZES = {"full": "full size", "mini": "miniature, not comparable with published numbers"}
SIZES |= {"mid": "mid scale, not comparable with published numbers"}
MAX_LISTED = 6
CSV_HEAD = (
    *("experiment", "scale", "method", "column", "metric", "n", "mean", "sd", "seeds", "missing"),
    *("published_full_size_mean", "published_full_size_sd"),
)


def experiment_tables(experiment: Experiment, scale: Scale, root: Path | str, selection: Selection = ALL) -> Tables:
    """Our results with the printed numbers in the same sheet (full) or after them (other scales)."""
    if not experiment.columns:
        raise UserError(
            f"{experiment.name} is no grid of runs and has no table; draw it with 'unissl paper figure', or choose "
            f"one of {', '.join(experiment.reads) or 'the tables in unissl paper list'}."
        )
    cells = collect_results(experiment, scale, root, selection)
    if not cells:
        raise UserError("No run is selected; name at least one method, column and seed, or leave out --methods etc.")
    if not any(result.summaries for result in cells.values()):
        raise UserError(
            f"No run of this table is finished in {root}; start them with 'unissl paper run {experiment.name} "
            f"--scale {scale}'."
        )
    columns = [column for column in experiment.columns if any(column.name == name for _, name in cells)]
    planned = experiment.seeds if selection.seeds is None else selection.seeds
    sheets = [results_sheet(experiment, scale, cells, columns, planned)]
    differences = difference_sheet(experiment, cells, columns)
    if differences is not None:
        sheets.append(differences)
    if scale != "full" and experiment.printed:
        sheets.append(published_sheet(experiment))
    return Tables(tuple(sheets), csv_sheet(experiment, scale, cells))


def results_sheet(
    experiment: Experiment, scale: Scale, cells: Cells, columns: Sequence[Column], planned: Sequence[int]
) -> Sheet:
    """A row for each variant and metric. Cells with other seeds than the rest state theirs."""
    metrics = dict(METRICS)
    if any("auroc" in summary for result in cells.values() for summary in result.summaries.values()):
        metrics["auroc"] = "AUROC"
    seeds = sorted({seed for result in cells.values() for seed in result.summaries})
    rows = []
    for variant in (v for v in experiment.variants if any(v.name == name for name, _ in cells)):
        for metric, title in metrics.items():
            values = [cells[variant.name, column.name].by_seed(metric) for column in columns]
            rows.append((variant.title, title, *(_cell(by_seed, seeds) for by_seed in values), _average(values)))
        if scale == "full":
            rows.append(_printed_row(experiment, columns, variant.name, (variant.title, PUBLISHED)))
    head = ("method", "accuracy", *(column.title for column in columns), "average")
    notes = [*_mini_notes(scale, columns), *_notes(experiment, cells, seeds, planned), *_missing_notes(cells)]
    return Sheet(f"{experiment.title}: {SIZES[scale]}", head, tuple(rows), tuple(notes), words=2)


def published_sheet(experiment: Experiment) -> Sheet:
    """The numbers of the paper alone."""
    columns = experiment.columns
    variants = [v for v in experiment.variants if any((v.name, c.name) in experiment.printed for c in columns)]
    rows = tuple(_printed_row(experiment, columns, variant.name, (variant.title,)) for variant in variants)
    head = ("method", *(column.title for column in columns), "average")
    notes = ["Full-size runs of the paper: best of a run's evaluations, mean ± deviation as printed."]
    results = gains(experiment, {cell: printed.mean for cell, printed in experiment.printed.items()})
    notes += [f"Gain on {g.data} by the printed means: {g.points:+.2f} over {g.baseline}." for g in results]
    return Sheet(f"{experiment.title}: as published, at full size", head, rows, tuple(notes))


def csv_sheet(experiment: Experiment, scale: Scale, cells: Cells) -> Sheet:
    """A row for each variant, column and metric, with full digits."""
    rows: list[tuple[object, ...]] = []
    for (variant, column), result in cells.items():
        for metric in METRICS:
            by_seed = result.by_seed(metric)
            mean, sd = mean_and_sd(by_seed.values()) or (None, None)
            printed = experiment.printed.get((variant, column)) if metric == PAPER_METRIC else None
            seeds = " ".join(str(seed) for seed in sorted(by_seed))
            missing = "; ".join(f"{seed}: {reason}" for seed, reason in sorted(result.missing.items()))
            published = (None, None) if printed is None else (printed.mean, printed.sd)
            numbers = (len(by_seed), mean, sd, seeds, missing, *published)
            rows.append((experiment.name, scale, variant, column, metric, *numbers))
    return Sheet(experiment.title, CSV_HEAD, csv_rows(rows), words=5)


def _cell(by_seed: Mapping[int, float], seeds: Collection[int]) -> str:
    numbers = mean_and_sd(by_seed.values())
    if numbers is None:
        return EMPTY
    same = set(by_seed) == set(seeds)
    return format_mean(*numbers) + ("" if same else f" (seed{'s' if len(by_seed) > 1 else ''} {format_seeds(by_seed)})")


def _average(values: Sequence[Mapping[int, float]]) -> str:
    """Over all columns; empty if some have no results, since it would not be comparable."""
    return f"{statistics.fmean(statistics.fmean(v.values()) for v in values):.2f}" if all(values) else EMPTY


def _printed_row(
    experiment: Experiment, columns: Sequence[Column], variant: str, words: tuple[str, ...]
) -> tuple[str, ...]:
    numbers: list[Printed | None] = [experiment.printed.get((variant, column.name)) for column in columns]
    means = [printed.mean for printed in numbers if printed is not None]
    average = f"{statistics.fmean(means):.2f}" if len(means) == len(numbers) else EMPTY
    return (*words, *(EMPTY if p is None else format_mean(p.mean, p.sd) for p in numbers), average)


def _notes(experiment: Experiment, cells: Cells, seeds: Sequence[int], planned: Sequence[int]) -> list[str]:
    deviation = "mean ± sample standard deviation (n - 1) over seeds" if len(seeds) > 1 else "one seed, so no deviation"
    notes = [
        f"Per cent; {deviation}. {seeds_note(seeds, planned)}",
        "last: after the last step. mean of last 20: of the last 20 evaluations. best: of all evaluations, chosen on "
        "the test images and therefore optimistic; it is what the paper prints.",
    ]
    results = gains(experiment, cell_means(cells, PAPER_METRIC))
    notes += [
        f"Gain on {g.data} (best): {g.sage:.2f} - {g.baseline_mean:.2f} ({g.baseline}) = {g.points:+.2f}."
        for g in results
    ]
    if results:
        average = f" Over the data sets of this table: {average_gain(results):+.2f}." if len(results) > 1 else ""
        notes.append(RULE + average)
    return [*notes, experiment.note] if experiment.note else notes


def _mini_notes(scale: Scale, columns: Sequence[Column]) -> list[str]:
    """Which small data set replaces which."""
    if scale != "mini":
        return []
    small = {column.data: MINI_DATA[column.data]["data"]["name"] for column in columns}
    listed = ", ".join(f"{mini} for {full}" for full, mini in small.items())
    evaluations = MINI_BUDGET["evaluations"]
    return [
        f"Miniature: {listed}; gammas and steps are smaller, too (unissl_paper/grid/scales.py); with {evaluations} "
        "evaluations in all, the mean of the last 20 is much of the training."
    ]


def _missing_notes(cells: Cells) -> list[str]:
    """Missing runs by reason, since a grid with few runs would fill a page one by one."""
    by_reason: dict[str, list[str]] = {}
    for (variant, column), result in cells.items():
        for seed, reason in sorted(result.missing.items()):
            by_reason.setdefault(reason, []).append(f"{variant} {column} seed {seed}")
    total = sum(len(result.summaries) + len(result.missing) for result in cells.values())
    notes = []
    for reason, names in by_reason.items():
        more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
        notes.append(f"{len(names)} of {total} runs {reason}: {', '.join(names[:MAX_LISTED])}{more}.")
    return notes
