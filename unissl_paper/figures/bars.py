"""Bars of one number per run: the mean over seeds, and a dot for each seed where there are several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from unissl_paper.figures.style import BLACK


def draw_bars(ax: Axes, values: Sequence[Sequence[float]], names: Sequence[str], colour: str, digits: int = 2) -> None:
    """``values`` has the numbers of all seeds for each bar."""
    x = np.arange(len(values))
    means = [float(np.mean(seeds)) for seeds in values]
    ax.bar(x, means, 0.62, color=colour)
    for index, seeds in enumerate(values):
        if len(seeds) > 1:
            ax.plot([index] * len(seeds), seeds, "o", color=BLACK, markersize=2, alpha=0.7, linestyle="none")
        top, bottom = max(*seeds, 0.0, 0.0), min(*seeds, 0.0, 0.0)
        above = means[index] >= 0
        ax.annotate(
            f"{means[index]:.{digits}f}",
            (index, top if above else bottom),
            xytext=(0, 3 if above else -3),
            textcoords="offset points",
            ha="center",
            va="bottom" if above else "top",
            fontsize=7,
        )
    rotate = max(len(name) for name in names) > 9 or len(names) > 4
    ax.set_xticks(x, list(names), rotation=35 if rotate else 0, ha="right" if rotate else "center")
    ax.axhline(0, color=BLACK, linewidth=0.6)
    low, high = min(0.0, *(min(seeds) for seeds in values)), max(0.0, *(max(seeds) for seeds in values))
    margin = 0.14 * (high - low or 1)
    ax.set_ylim(low - margin if low < 0 else 0, high + margin if high > 0 else 0)
    ax.set_xlim(-0.6, len(values) - 0.4)
