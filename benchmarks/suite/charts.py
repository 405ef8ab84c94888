"""Chart of a benchmark: ratios with their range, and the seconds of both sides."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.measure import Result, Spread
from unissl.plots.charts import BLUE, ORANGE


def draw(result: Result) -> Figure:
    rows = [row for row in result.rows if row.ours]
    figure = Figure(figsize=(10, 1.6 + 0.42 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    for y, row in enumerate(rows):
        for shift, seconds, colour in ((-0.12, row.ours, BLUE), (0.12, row.other, ORANGE)):
            if seconds:
                _draw(left, y + shift, Spread.of(seconds), colour)
        if row.ratio is not None:
            _draw(right, y, row.ratio, BLUE)
            right.annotate(f"  {row.ratio.median:.2f}", (row.ratio.high, y), va="center", fontsize=8)
    left.set_yticks(range(len(rows)), [row.case for row in rows])
    left.invert_yaxis()
    left.set_xscale("log")
    left.set_title(f"Seconds: {result.sides[0]} (blue), {result.sides[1]} (orange)", fontsize=9)
    right.axvline(1, color="grey", linewidth=0.8)
    right.set_title(f"{result.ratio[0].upper()}{result.ratio[1:]}: median and range of pairs", fontsize=9)
    figure.suptitle(result.title)
    return figure


def _draw(ax: Axes, y: float, spread: Spread, colour: str) -> None:
    """A dot at the median with a line over the range; bars need a zero, which a logarithmic axis lacks."""
    error = [[spread.median - spread.low], [spread.high - spread.median]]
    ax.errorbar(spread.median, y, xerr=error, fmt="o", color=colour, capsize=3)
