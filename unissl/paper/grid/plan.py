"""From an experiment to its runs, and from a run to what is in its folder.

A run is known by a hash of its resolved configuration. So two experiments that ask for the same run share it, a grid
that is edited asks for other runs and leaves the old ones as they are, and nothing depends on names.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from unissl.errors import UserError, did_you_mean
from unissl.paper.experiments.experiment import Column, Experiment, Variant
from unissl.paper.grid.mini import mini_config
from unissl.paper.grid.resolve import full_config
from unissl.paper.grid.storage import State, examine, place_of
from unissl.run.config import RunConfig, config_hash

Scale = Literal["full", "mini"]
One = TypeVar("One", Column, Variant)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a grid; ``config`` is resolved to the last setting but for the machine."""

    experiment: Experiment
    variant: Variant
    setting: Column
    seed: int
    scale: Scale
    config: RunConfig

    @cached_property
    def key(self) -> str:
        """Hash of the resolved configuration, the same that the run's summary gives as ``config``."""
        return config_hash(self.config)

    @property
    def name(self) -> str:
        """DATA-METHOD-SEED-KEY: nothing but the configuration decides it."""
        return "-".join((self.config.data.name, self.config.method.name, str(self.seed), self.key))

    @property
    def origin(self) -> dict[str, Any]:
        """The cell that it was asked for by; the folder keeps it for people."""
        names = {"experiment": self.experiment.name, "variant": self.variant.name, "setting": self.setting.name}
        return names | {"seed": self.seed, "scale": self.scale}

    def folder(self, root: Path | str) -> Path:
        """ROOT/SCALE/NAME."""
        return Path(root) / self.scale / self.name


@dataclass(frozen=True)
class Outcome:
    """What is in the folder of a planned run. A summary goes with "done", a reason with "failed"."""

    run: PlannedRun
    state: State
    summary: dict[str, Any] | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Part:
    """Which runs of an experiment are meant; None is for all."""

    only: Collection[str] | None = None
    """Names of variants."""
    settings: Collection[str] | None = None
    """Names of settings."""
    seeds: Sequence[int] | None = None
    """May be others than the experiment's."""


ALL = Part()


def plan(experiment: Experiment, scale: Scale, part: Part = ALL) -> list[PlannedRun]:
    """The runs of an experiment, setting by setting."""
    rows = _chosen(part.only, experiment.variants, f"variant of {experiment.name}")
    columns = _chosen(part.settings, experiment.settings, f"setting of {experiment.name}")
    found = []
    for seed in experiment.seeds if part.seeds is None else part.seeds:
        for setting in columns:
            for variant in rows:
                config = full_config(setting, variant, seed)
                if scale == "mini":
                    config = mini_config(config)
                found.append(PlannedRun(experiment, variant, setting, seed, scale, config))
    return found


def _chosen(names: Collection[str] | None, there: Sequence[One], what: str) -> list[One]:
    """Those that are named, in the order of the experiment."""
    known = [one.name for one in there]
    for name in names or ():
        if name not in known:
            raise UserError(f"{name!r} is no {what}.{did_you_mean(name, known)}")
    return [one for one in there if names is None or one.name in names]


def read_outcome(run: PlannedRun, root: Path | str) -> Outcome:
    """What has become of a run so far; reads nothing but its folder, which may be behind a URL."""
    found = examine(place_of(root, run.scale, run.name), run.key)
    return Outcome(run, found.state, found.summary, found.reason)
