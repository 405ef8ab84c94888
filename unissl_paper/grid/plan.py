"""From an experiment to its runs.

A run is identified by the hash of its resolved configuration. Two experiments that plan the same run share it, and an
edited grid plans other runs and leaves the old ones as they are; names decide nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from unissl.errors import UserError, did_you_mean
from unissl.run.config import RunConfig, config_hash
from unissl_paper.experiments.experiment import Column, Experiment, Scale, Variant
from unissl_paper.grid.scales import cell_config
from unissl_paper.grid.storage import RunStatus, read_status, run_storage, scale_storage

Axis = TypeVar("Axis", Column, Variant)
RUN_NAME = re.compile(r".+-([0-9]+)-[0-9a-f]+")


@dataclass(frozen=True)
class PlannedRun:
    """One run of a grid; ``config`` is resolved completely but for the machine."""

    experiment: Experiment
    variant: Variant
    column: Column
    seed: int
    scale: Scale
    config: RunConfig

    @cached_property
    def key(self) -> str:
        """Hash of the resolved configuration, which the run's summary gives as ``config``."""
        return config_hash(self.config)

    @property
    def name(self) -> str:
        """DATA-METHOD-SEED-KEY."""
        return "-".join((self.config.data.name, self.config.method.name, str(self.seed), self.key))

    @property
    def origin(self) -> dict[str, Any]:
        """The cell that planned the run; stored in its folder for people."""
        names = {"experiment": self.experiment.name, "variant": self.variant.name, "column": self.column.name}
        return names | {"seed": self.seed, "scale": self.scale}

    def folder(self, root: Path | str) -> Path:
        """ROOT/SCALE/NAME."""
        return Path(root) / self.scale / self.name

    def status(self, root: Path | str) -> RunStatus:
        """State of the run's folder, which may be behind a URL."""
        return read_status(run_storage(root, self.scale, self.name), self.key)


@dataclass(frozen=True)
class Selection:
    """Which runs of an experiment; None selects all."""

    methods: Collection[str] | None = None
    """Names of variants."""
    columns: Collection[str] | None = None
    seeds: Sequence[int] | None = None
    """May be others than the experiment's."""


ALL = Selection()


def plan(experiment: Experiment, scale: Scale, selection: Selection = ALL) -> list[PlannedRun]:
    """The runs of an experiment, column by column."""
    if scale not in experiment.scales:
        scales = " or ".join(f"--scale {one}" for one in experiment.scales)
        raise UserError(f"{experiment.name} has no scale {scale}; use {scales}.")
    variants = _select(selection.methods, experiment.variants, f"method of {experiment.name}")
    columns = _select(selection.columns, experiment.columns, f"column of {experiment.name}")
    return [
        PlannedRun(experiment, variant, column, seed, scale, cell_config(column, variant, seed, scale))
        for seed in (experiment.seeds if selection.seeds is None else selection.seeds)
        for column in columns
        for variant in variants
    ]


def _select(names: Collection[str] | None, options: Sequence[Axis], kind: str) -> list[Axis]:
    """The named options, in the order of the experiment."""
    known = [option.name for option in options]
    for name in names or ():
        if name not in known:
            raise UserError(f"{name!r} is no {kind}.{did_you_mean(name, known)}")
    return [option for option in options if names is None or option.name in names]


def runs_to_show(
    experiment: Experiment, scale: Scale, root: Path | str, selection: Selection = ALL
) -> list[tuple[PlannedRun, RunStatus]]:
    """The runs of a table or figure with their status.

    Without selected seeds these are the experiment's seeds that have a finished run, and any other seed with as many
    finished runs as the best of all; the experiment's seeds if nothing is finished.
    """
    if selection.seeds is not None:
        return [(run, run.status(root)) for run in plan(experiment, scale, selection)]
    seeds = sorted({*experiment.seeds, *stored_seeds(root, scale)})
    runs = plan(experiment, scale, Selection(selection.methods, selection.columns, seeds))
    pairs = [(run, run.status(root)) for run in runs]
    done = Counter(run.seed for run, status in pairs if status.state == "done")
    chosen = {seed for seed, count in done.items() if seed in experiment.seeds or count == max(done.values())}
    return [(run, status) for run, status in pairs if run.seed in (chosen or experiment.seeds)]


def stored_seeds(root: Path | str, scale: Scale) -> set[int]:
    """Seeds in the names of the run folders of a scale, of any experiment."""
    names = (RUN_NAME.fullmatch(name) for name in scale_storage(root, scale).names())
    return {int(name[1]) for name in names if name is not None}


def format_seeds(seeds: Collection[int]) -> str:
    """``0-2`` for consecutive seeds, else ``0, 2``."""
    ordered = sorted(seeds)
    if len(ordered) > 1 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}-{ordered[-1]}"
    return ", ".join(str(seed) for seed in ordered)


def seeds_note(present: Collection[int], planned: Collection[int]) -> str:
    """``Seeds 0 of 0-2.``, or both if some that are present were not planned."""
    words = f"Seed{'s' if len(present) > 1 else ''} {format_seeds(present)}"
    if set(present) == set(planned):
        return f"{words}."
    if set(present) < set(planned):
        return f"Seeds {format_seeds(present)} of {format_seeds(planned)}."
    return f"{words} (the experiment plans {format_seeds(planned)})."
