"""From an experiment to its runs, and from a run to what is in its folder.

A run is known by a hash of its resolved configuration. So two experiments that ask for the same run share it, a grid
that is edited asks for other runs and leaves the old ones as they are, and nothing depends on names.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unissl.paper.experiment import Experiment, Setting, Variant
from unissl.run_config import RunConfig, identity

Scale = Literal["full", "mini"]
State = Literal["done", "cut off", "failed", "missing"]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a grid; ``config`` is resolved to the last setting but for the machine."""

    experiment: Experiment
    variant: Variant
    setting: Setting
    seed: int
    scale: Scale
    config: RunConfig

    @property
    def key(self) -> str:
        """Hash of the resolved configuration, the same that the run's summary gives as ``config``."""
        return identity(self.config)

    def folder(self, root: Path | str) -> Path:
        """ROOT/SCALE/DATA-METHOD-SEED-KEY: nothing but the configuration decides it."""
        facts = (self.config.data.name, self.config.method.name, str(self.seed), self.key)
        return Path(root) / self.scale / "-".join(facts)


@dataclass(frozen=True)
class Outcome:
    """What is in the folder of a planned run. A summary goes with "done", a reason with "failed"."""

    run: PlannedRun
    state: State
    summary: dict[str, Any] | None = None
    reason: str | None = None


def plan(
    experiment: Experiment, scale: Scale, only: Collection[str] | None = None, seeds: Sequence[int] | None = None
) -> list[PlannedRun]:
    """The runs of an experiment; of the variants in ``only`` and with other ``seeds`` where these are given."""
    raise NotImplementedError


def look(run: PlannedRun, root: Path | str) -> Outcome:
    """What has become of a run so far; reads nothing but its folder."""
    raise NotImplementedError
