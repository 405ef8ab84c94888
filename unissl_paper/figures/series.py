"""Finished runs for figures: read from their folders, grouped by configuration over seeds, and named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unissl.config import ConfigTree, read_toml
from unissl.errors import UserError
from unissl.methods.registry import all_methods
from unissl.plots.curves import Metrics
from unissl.run_folder import RunFolder
from unissl.utils.atomic import read_json

SYMBOLS = {"method.ridge": "λ", "method.walk_steps": "β", "method.num_anchors": "K", "split.gamma": "γ"}
IGNORED = ("seed", "machine", "output", "method.name")
"""Settings that do not make a difference between two runs of a figure."""


@dataclass(frozen=True)
class FinishedRun:
    """Configuration, summary and metrics of a run folder."""

    folder: RunFolder
    config: ConfigTree
    summary: Mapping[str, Any]
    metrics: Metrics

    @property
    def seed(self) -> int:
        return int(self.summary["seed"])

    @property
    def method(self) -> str:
        method = all_methods().get(self.summary["method"])
        return str(self.summary["method"]) if method is None else method.title

    @property
    def class_names(self) -> Sequence[str]:
        return list(self.summary["class_names"])

    @property
    def pool_lines(self) -> list[Mapping[str, Any]]:
        """The evaluations that recorded the pool; an error if training recorded none."""
        lines = [line for line in self.metrics if line["kind"] == "eval" and line.get("pool")]
        if not lines:
            known = self.summary.get("pool", {}).get("truth_known", False)
            fix = "train again with --set train.diagnostics=true" if known else "choose a run with known pool labels"
            raise UserError(f"{self.folder.path} has no record of its pool over training; {fix}.")
        return lines


@dataclass(frozen=True)
class Series:
    """Runs that differ in their seeds only, ascending: ``row`` names the method, ``column`` the data."""

    row: str
    column: str
    runs: tuple[FinishedRun, ...]

    @property
    def first(self) -> FinishedRun:
        return self.runs[0]


def read_run(path: Path) -> FinishedRun:
    folder = RunFolder(path)
    if not folder.holds_run:
        raise UserError(f"{path} holds no run; give folders of 'unissl train' or 'unissl paper run'.")
    if not folder.finished:
        raise UserError(f"The run in {path} is not finished; finish it with 'unissl train --resume --out {path}'.")
    return FinishedRun(folder, read_toml(folder.config), read_json(folder.summary), folder.read_metrics())


def group(runs: Iterable[FinishedRun]) -> list[Series]:
    """Group runs that differ only in the seed into series, named by the settings that differ, in the given order."""
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(repr(sorted(flatten(run.config).items())), []).append(run)
    firsts = [members[0] for members in groups.values()]
    series = []
    for members in groups.values():
        first = members[0]
        same_method = [run for run in firsts if run.method == first.method]
        row = [key for key in differing(same_method) if key.startswith("method.")]
        column = [key for key in differing(firsts) if not key.startswith("method.")]
        ordered = tuple(sorted(members, key=lambda run: run.seed))
        row_name = ", ".join([first.method, *_labels(first, row)])
        series.append(Series(row_name, ", ".join(_labels(first, column)), ordered))
    return series


def titles(series: Sequence[Series]) -> list[str]:
    """The row's name, the column's name or both: the shortest that distinguishes the series."""
    rows, columns = {one.row for one in series}, {one.column for one in series}
    if len(columns) == 1:
        return [one.row for one in series]
    if len(rows) == 1:
        return [one.column for one in series]
    return [f"{one.row}, {one.column}" for one in series]


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted name, without the ignored ones."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if name in IGNORED:
            continue
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def differing(runs: Sequence[FinishedRun]) -> list[str]:
    """Names of the settings that are not equal in all runs."""
    flat = [flatten(run.config) for run in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    return [key for key in keys if len({repr(one.get(key)) for one in flat}) > 1]


def _labels(run: FinishedRun, keys: Iterable[str]) -> list[str]:
    flat = flatten(run.config)
    return [_label(SYMBOLS.get(key, key.split(".")[-1]), flat.get(key)) for key in keys]


def _label(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"{'with' if value else 'no'} {name}"
    if isinstance(value, str):
        return f"{name} {value}"
    return f"{name} = {'default' if value is None else f'{value:g}' if isinstance(value, float) else value}"
