"""What an experiment of the paper is: columns, rows, seeds, and the numbers that were printed.

A *setting* is a column of a table (a data set and how it is split), a *variant* is a row (a method, or a form of one).
Both are trees of differences, as everywhere in :mod:`unissl.config`, so that an experiment is data: the run of a cell
is the protocol of the paper, then the setting, then the variant, then the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unissl.config import ConfigTree

Cell = tuple[str, str]
"""Names of a variant and of a setting: the place of a number in a table."""


@dataclass(frozen=True)
class Column:
    """A column at full scale, for example CIFAR-10, N = 40, arbitrary, gamma_u = 100."""

    name: str
    title: str
    tree: ConfigTree


@dataclass(frozen=True)
class Variant:
    """A row: a method, or a form of one. ``tree["method"]["name"]`` is always there."""

    name: str
    title: str
    tree: ConfigTree

    @property
    def method(self) -> str:
        return str(self.tree["method"]["name"])


@dataclass(frozen=True)
class Printed:
    """A number of the paper in per cent; best over the evaluations, and over seeds where ``sd`` is printed too."""

    mean: float
    sd: float | None = None


@dataclass(frozen=True)
class Experiment:
    """A grid of runs (every variant in every setting with every seed) and what the paper says comes out.

    ``reads`` names experiments whose runs this one uses; one without settings is drawn or computed from those alone.
    """

    name: str
    title: str
    settings: tuple[Column, ...] = ()
    variants: tuple[Variant, ...] = ()
    seeds: tuple[int, ...] = ()
    printed: Mapping[Cell, Printed] = field(default_factory=dict)
    note: str = ""
    """What is not established about it, and what we chose."""
    reads: tuple[str, ...] = ()

    @property
    def runs(self) -> int:
        """How many runs it asks for, shared ones included."""
        return len(self.settings) * len(self.variants) * len(self.seeds)
