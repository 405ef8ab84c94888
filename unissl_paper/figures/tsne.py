"""t-SNE of test features, a panel for each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from unissl.plots.charts import plain
from unissl.plots.embedding import project_2d
from unissl_paper.figures.features import test_features
from unissl_paper.figures.series import Series, titles
from unissl_paper.figures.style import HUES, LIGHT, PAGE, CaptionedFigure, label_panels, panels

MAX_NAMED = 14
SHAPES = ("o", "^")
MAX_COLUMNS = 3
MAX_POINTS = 1_000


def draw(series: Sequence[Series]) -> CaptionedFigure:
    """Colours and markers show true classes; of many classes, evenly spaced ones are coloured and the others grey."""
    names = series[0].first.class_names
    named = np.unique(np.linspace(0, len(names) - 1, min(len(names), MAX_NAMED)).round().astype(int))
    columns = min(MAX_COLUMNS, len(series))
    rows = -(-len(series) // columns)
    figure, axes = panels(rows, columns, PAGE, 0.45 + rows * PAGE / max(columns, 2) * 0.95)
    for ax, one, title in zip(axes, series, titles(series), strict=False):
        features, truth = test_features(one.first, MAX_POINTS)
        points = project_2d(features)
        rest = ~np.isin(truth, named)
        ax.scatter(points[rest, 0], points[rest, 1], s=2, color=LIGHT, linewidths=0)
        for index, c in enumerate(named):
            of_class, size = points[truth == c], 5 if index < len(HUES) else 7
            ax.scatter(of_class[:, 0], of_class[:, 1], s=size, linewidths=0, **_marker(index))
        ax.set_title(title)
        ax.set(xticks=[], yticks=[])
        ax.set_aspect("equal", adjustable="datalim")  # panels of equal size
        ax.spines[:].set_visible(False)
    for ax in axes[len(series) :]:
        ax.set_axis_off()
    label_panels(axes[: len(series)])
    handles = [
        Line2D([], [], linestyle="", markersize=4, markeredgewidth=0, **_marker(index)) for index in range(len(named))
    ]
    figure.legend(
        handles,
        [plain(names[c], 12) for c in named],
        loc="outside lower center",
        ncols=7 if len(named) > 10 else len(named),
        handletextpad=0.1,
    )
    seeds = ", ".join(str(one.first.seed) for one in series)
    return CaptionedFigure(
        figure,
        f"t-SNE (after PCA to 30 dimensions, perplexity 30) of the features of up to {MAX_POINTS:,} test images by "
        f"averaged weights, coloured by true class; seeds {seeds}. The paper does not state its settings. Distances "
        "between islands mean nothing.",
    )


def _marker(index: int) -> dict[str, Any]:
    return {"color": HUES[index % len(HUES)], "marker": SHAPES[index // len(HUES) % len(SHAPES)]}
