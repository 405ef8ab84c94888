"""Finished runs as what figures are drawn from: folders read, seeds of one configuration put together, names given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unissl.config import ConfigTree, read_toml
from unissl.errors import UserError
from unissl.methods.registry import all_methods
from unissl.plots.curves import Metrics
from unissl.run_folder import RunFolder, read_json

SYMBOLS = {"method.ridge": "λ", "method.walk_steps": "β", "method.num_anchors": "K", "split.gamma": "γ"}
NOT_A_DIFFERENCE = ("seed", "machine", "method.name")
"""What does not make two runs of a figure different things."""


@dataclass(frozen=True)
class FinishedRun:
    """What a run folder says, images apart."""

    folder: RunFolder
    config: ConfigTree
    summary: Mapping[str, Any]
    metrics: Metrics

    @property
    def seed(self) -> int:
        return int(self.summary["seed"])

    @property
    def method(self) -> str:
        known = all_methods().get(self.summary["method"])
        return str(self.summary["method"]) if known is None else known.title

    @property
    def class_names(self) -> Sequence[str]:
        return list(self.summary["class_names"])

    @property
    def pool_lines(self) -> list[Mapping[str, Any]]:
        """The record of the pool at each evaluation, with the step; refused where training did not keep one."""
        lines = [line for line in self.metrics if line["kind"] == "eval" and line.get("pool")]
        if not lines:
            known = self.summary.get("pool", {}).get("truth_known", False)
            fix = (
                "train again with --set train.diagnostics=true" if known else "choose a run whose pool's truth is known"
            )
            raise UserError(f"{self.folder.path} has no record of its pool over training; {fix}.")
        return lines


@dataclass(frozen=True)
class Series:
    """Runs that differ in their seeds alone, ascending: ``row`` is what was trained, ``column`` on what."""

    row: str
    column: str
    runs: tuple[FinishedRun, ...]

    @property
    def first(self) -> FinishedRun:
        return self.runs[0]


def read_run(path: Path) -> FinishedRun:
    folder = RunFolder(path)
    if not folder.holds_run:
        raise UserError(f"{path} holds no run; give folders that 'unissl train' or 'unissl paper run' has made.")
    if not folder.finished:
        raise UserError(f"The run in {path} is not finished; finish it with 'unissl train --resume --out {path}'.")
    return FinishedRun(folder, read_toml(folder.config), read_json(folder.summary), folder.read_metrics())


def group(runs: Iterable[FinishedRun]) -> list[Series]:
    """Runs that differ in nothing but the seed as one series, named by what they differ in, in the order given."""
    together: dict[str, list[FinishedRun]] = {}
    for run in runs:
        together.setdefault(repr(sorted(leaves(run.config).items())), []).append(run)
    firsts = [members[0] for members in together.values()]
    made = []
    for members in together.values():
        first = members[0]
        alike = [run for run in firsts if run.method == first.method]
        row = [key for key in differing(alike) if key.startswith("method.")]
        column = [key for key in differing(firsts) if not key.startswith("method.")]
        ordered = tuple(sorted(members, key=lambda run: run.seed))
        made.append(Series(", ".join([first.method, *_said(first, row)]), ", ".join(_said(first, column)), ordered))
    return made


def titles(series: Sequence[Series]) -> list[str]:
    """The row's name, the column's name or both, as it takes to tell the series apart."""
    rows, columns = {one.row for one in series}, {one.column for one in series}
    if len(columns) == 1:
        return [one.row for one in series]
    if len(rows) == 1:
        return [one.column for one in series]
    return [f"{one.row}, {one.column}" for one in series]


def leaves(config: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Settings by dotted name, without what makes no difference."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{where}{key}"
        if name in NOT_A_DIFFERENCE:
            continue
        found |= leaves(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return found


def differing(runs: Sequence[FinishedRun]) -> list[str]:
    """Names of settings that are not the same in all of them."""
    flat = [leaves(run.config) for run in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    return [key for key in keys if len({repr(one.get(key)) for one in flat}) > 1]


def _said(run: FinishedRun, keys: Iterable[str]) -> list[str]:
    flat = leaves(run.config)
    return [_word(SYMBOLS.get(key, key.split(".")[-1]), flat.get(key)) for key in keys]


def _word(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"{'with' if value else 'no'} {name}"
    if isinstance(value, str):
        return f"{name} {value}"
    return f"{name} = {'default' if value is None else f'{value:g}' if isinstance(value, float) else value}"
