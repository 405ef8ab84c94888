"""Time of a step by method."""

from __future__ import annotations

from collections.abc import Sequence

from unissl_paper.figures.bars import draw_bars
from unissl_paper.figures.series import Series, titles
from unissl_paper.figures.style import COLUMN, HUES, PAGE, CaptionedFigure, panels


def draw(series: Sequence[Series]) -> CaptionedFigure:
    values = [[1000 * run.summary["seconds"] / run.summary["steps"] for run in one.runs] for one in series]
    figure, (ax,) = panels(1, 1, COLUMN if len(series) <= 6 else PAGE, 2.3)
    largest = max(max(seeds) for seeds in values)
    draw_bars(ax, values, titles(series), HUES[0], digits=0 if largest >= 100 else 1)
    ax.set_ylabel("ms per step")
    return CaptionedFigure(
        figure,
        "Wall-clock time of training, evaluations included, divided by the number of steps. Bar: mean over seeds; "
        "dots: seeds. Other load on the machine is included; 'make bench BENCH=methods' compares methods interleaved.",
    )
