"""Accuracy of several variants of a method in several columns, as groups of bars."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.patches import Patch

from unissl_paper.figures.series import Series
from unissl_paper.figures.style import BLACK, HUES, PAGE, CaptionedFigure, legend_outside, panels

WIDTH = 0.82
"""Of a group, where 1 is the distance to the next."""


def draw(series: Sequence[Series]) -> CaptionedFigure:
    columns = list(dict.fromkeys(one.column for one in series))
    by_column = [[one.row for one in series if one.column == column] for column in columns]
    # Groups may lack bars; the largest one has the order of the experiment.
    rows = list(dict.fromkeys(row for group in sorted(by_column, key=len, reverse=True) for row in group))
    by_cell = {(one.row, one.column): one for one in series}
    figure, (ax,) = panels(1, 1, PAGE, 2.4)
    width = WIDTH / len(rows)
    for index, row in enumerate(rows):
        x = np.arange(len(columns)) + (index - (len(rows) - 1) / 2) * width
        for at, column in zip(x, columns, strict=True):
            if (row, column) not in by_cell:
                continue
            values = [100 * run.summary["accuracy"]["best"] for run in by_cell[row, column].runs]
            lasts = [100 * run.summary["accuracy"]["last"] for run in by_cell[row, column].runs]
            ax.bar(at, np.mean(values), 0.9 * width, color=HUES[index % len(HUES)])
            ax.plot([at - 0.45 * width, at + 0.45 * width], [np.mean(lasts)] * 2, color=BLACK, linewidth=0.8)
            if len(values) > 1:
                ax.plot([at] * len(values), values, "o", color=BLACK, markersize=2, alpha=0.7)
            ax.annotate(
                f"{np.mean(values):.1f}",
                (at, max(values)),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )
    ax.set_xticks(range(len(columns)) if any(columns) else [], columns if any(columns) else [])
    ax.set_xlim(-0.5, len(columns) - 0.5)  # also with empty groups
    ax.set_ylim(0, 108)
    ax.set_yticks(range(0, 101, 25))
    ax.set_ylabel("test accuracy, %")
    handles = [Patch(color=HUES[index % len(HUES)]) for index in range(len(rows))]
    legend_outside(figure, handles, rows, "outside upper center")
    return CaptionedFigure(
        figure,
        "Test accuracy with components removed. Bar: best of all evaluations, chosen on the test images (what the "
        "paper prints), mean over seeds; dots: seeds; black line: after the last step.",
    )
