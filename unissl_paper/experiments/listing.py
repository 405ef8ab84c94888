"""The list of experiments that `unissl paper list` prints."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from typing import Literal

from unissl.utils.csv_cells import to_cell
from unissl_paper.experiments import EXPERIMENTS
from unissl_paper.experiments.experiment import Experiment
from unissl_paper.grid.plan import plan

HEAD = ("name", "experiment", "runs", "mini", "printed", "published results and what is not published")


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    runs: int
    """At full scale, with the paper's seeds; runs shared by experiments are counted in each."""
    mini: int
    """In miniature, where some cells have the same configuration."""
    printed: int
    """Cells with a number in the paper."""
    published: str

    def cells(self) -> tuple[str, ...]:
        return tuple(str(value) for value in asdict(self).values())


def listing() -> list[Row]:
    return [_row(experiment) for experiment in EXPERIMENTS.values()]


def _row(experiment: Experiment) -> Row:
    mini = len({run.key for run in plan(experiment, "mini")})
    return Row(
        experiment.name, experiment.title, experiment.runs, mini, len(experiment.printed), _published(experiment)
    )


def _published(experiment: Experiment) -> str:
    parts = []
    means = [number.mean for (variant, _), number in experiment.printed.items() if variant == "sage"]
    if len(means) == 1:
        parts.append(f"SAGE {means[0]:.2f}.")
    elif means:
        parts.append(f"SAGE {min(means):.2f} to {max(means):.2f}, mean {sum(means) / len(means):.2f}.")
    if experiment.reads:
        parts.append(f"Reads {', '.join(experiment.reads)}.")
    return " ".join([*parts, experiment.note])


def format_listing(rows: list[Row], form: Literal["md", "csv", "json"]) -> str:
    if form == "json":
        return json.dumps([asdict(row) for row in rows], indent=2) + "\n"
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([HEAD, *(map(to_cell, row.cells()) for row in rows)])
        return text.getvalue()
    lines = [HEAD, ("---", "---", "---:", "---:", "---:", "---"), *(row.cells() for row in rows)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
