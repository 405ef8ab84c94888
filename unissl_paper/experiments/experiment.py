"""An experiment of the paper: columns, rows, seeds, and the printed numbers.

A *column* is a data set and its split, a *variant* (row) is a method or a form of one. Both are trees of differences,
as everywhere in :mod:`unissl.config`: the configuration of a cell is the protocol of the paper, then the column, then
the variant, then the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from unissl.config import ConfigTree

Scale = Literal["full", "mini", "mid"]
"""full as published; mini on small images in minutes; mid between them in hours, for the experiment claim."""
Cell = tuple[str, str]
"""Names of a variant and of a column."""


@dataclass(frozen=True)
class Column:
    """A column at full scale, for example CIFAR-10, N = 40, arbitrary, gamma_u = 100."""

    name: str
    title: str
    tree: ConfigTree

    @property
    def data(self) -> str:
        """Name of the data set at full scale."""
        return str(self.tree["data"]["name"])


@dataclass(frozen=True)
class Variant:
    """A row: a method, or a form of one. ``tree["method"]["name"]`` is always set."""

    name: str
    title: str
    tree: ConfigTree

    @property
    def method(self) -> str:
        return str(self.tree["method"]["name"])

    @property
    def is_sage(self) -> bool:
        return self.method == "sage"

    @property
    def is_supervised(self) -> bool:
        """Whether it trains on the true labels of the pool; such methods are no competitors."""
        return self.method in ("fully-supervised", "logit-adjust")


@dataclass(frozen=True)
class Printed:
    """A number of the paper in per cent: best over the evaluations, mean over seeds where ``sd`` is printed too."""

    mean: float
    sd: float | None = None


@dataclass(frozen=True)
class Experiment:
    """A grid of runs (every variant in every column with every seed) and the numbers that the paper prints.

    ``reads`` names experiments whose runs this one uses; one without columns uses those alone.
    """

    name: str
    title: str
    columns: tuple[Column, ...] = ()
    variants: tuple[Variant, ...] = ()
    seeds: tuple[int, ...] = ()
    printed: Mapping[Cell, Printed] = field(default_factory=dict)
    note: str = ""
    """What the paper does not state, and our choice."""
    reads: tuple[str, ...] = ()
    scales: tuple[Scale, ...] = ("full", "mini")

    @property
    def runs(self) -> int:
        """Number of runs, including those shared with other experiments."""
        return len(self.columns) * len(self.variants) * len(self.seeds)
