"""Values over training as lines: the mean over seeds, with a band from the lowest to the highest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from unissl_paper.figures.series import Series
from unissl_paper.figures.style import style_of

PoolMetric = Callable[[Mapping[str, Any]], float | None]
"""From the record of the pool at one evaluation to a share; None if it is undefined."""


def pool_curve(one: Series, metric: PoolMetric) -> tuple[list[int], np.ndarray[Any, np.dtype[np.float64]]]:
    """Steps, and per cent for each run and step, (runs, steps)."""
    lines = [run.pool_lines for run in one.runs]
    values = [[metric(line["pool"]) for line in run] for run in lines]
    numbers = np.array([[np.nan if value is None else 100 * value for value in run] for run in values])
    return [line["step"] for line in lines[0]], numbers


def draw_curve(ax: Axes, one: Series, metric: PoolMetric, index: int, label: str | None, faint: bool = False) -> None:
    steps, values = pool_curve(one, metric)
    colour, dashes = style_of(index)
    defined = np.isfinite(values).any(0)
    x, values = np.array(steps)[defined], values[:, defined]
    style = (0, (3, 1.5)) if faint else dashes
    width = 0.9 if faint else 1.2
    ax.plot(x, np.nanmean(values, 0), color=colour, linestyle=style, label=label, linewidth=width)
    if len(values) > 1 and not faint:
        ax.fill_between(x, np.nanmin(values, 0), np.nanmax(values, 0), color=colour, alpha=0.15, linewidth=0)


def over_training(axes: Sequence[Axes], label: str = "per cent") -> None:
    """Axes of steps and per cent."""
    for ax in axes:
        ax.set_xlabel("step")
        ax.set_xlim(left=0)
        ax.set_ylim(0, 102)
    axes[0].set_ylabel(label)
