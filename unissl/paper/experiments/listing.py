"""The experiments as a list for people and programs: what `unissl paper list` prints."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from typing import Literal

from unissl.paper.experiments.experiment import Experiment
from unissl.paper.experiments.registry import EXPERIMENTS
from unissl.paper.grid.plan import plan

HEAD = ("name", "experiment", "runs", "mini", "printed", "published, and what is not known")


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    runs: int
    """At full scale, with the paper's seeds; runs that other experiments ask for too are counted in each."""
    mini: int
    """In miniature, where some cells become the same run."""
    printed: int
    """Cells with a number in the paper."""
    published: str

    def cells(self) -> tuple[str, ...]:
        return tuple(str(value) for value in asdict(self).values())


def listing() -> list[Row]:
    return [
        Row(
            one.name,
            one.title,
            one.runs,
            len({run.key for run in plan(one, "mini")}),
            len(one.printed),
            _published(one),
        )
        for one in EXPERIMENTS.values()
    ]


def _published(experiment: Experiment) -> str:
    parts = []
    ours = [(cell, number) for cell, number in experiment.printed.items() if cell[0] == "sage"]
    if ours:
        means = [number.mean for _, number in ours]
        if len(ours) == 1:
            parts.append(f"SAGE {means[0]:.2f}.")
        else:
            parts.append(f"SAGE {min(means):.2f} to {max(means):.2f}, mean {sum(means) / len(means):.2f}.")
    if experiment.reads:
        parts.append(f"Reads {', '.join(experiment.reads)}.")
    return " ".join([*parts, experiment.note])


def write(rows: list[Row], form: Literal["md", "csv", "json"]) -> str:
    if form == "json":
        return json.dumps([asdict(row) for row in rows], indent=2) + "\n"
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([HEAD, *(row.cells() for row in rows)])
        return text.getvalue()
    lines = [HEAD, ("---", "---", "---:", "---:", "---:", "---"), *(row.cells() for row in rows)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
