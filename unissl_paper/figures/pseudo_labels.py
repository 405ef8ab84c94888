"""Histograms of right and wrong pseudo-labels with the true counts, and the accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from unissl.errors import UserError
from unissl.plots.charts import plain
from unissl_paper.figures.series import Series, titles
from unissl_paper.figures.style import BLACK, HUES, PAGE, CaptionedFigure, label_panels, panels

MAX_NAMED = 20
MAX_COLUMNS = 4
TP, FP = HUES[0], HUES[1]


def draw(series: Sequence[Series]) -> CaptionedFigure:
    """A panel for each series, of its lowest seed; classes by their true size in the pool, the largest first."""
    recorded = all(any(line.get("pool") for line in one.first.metrics) for one in series)
    pools = [_pool(one, recorded) for one in series]
    columns = min(MAX_COLUMNS, len(series) + 1)
    rows = -(-(len(series) + 1) // columns)
    figure, axes = panels(rows, columns, PAGE, 1.75 * rows)
    for ax, pool, one, title in zip(axes, pools, series, titles(series), strict=False):
        _histogram(ax, pool, one.first.class_names)
        ax.set_title(title)
    handles, labels = axes[0].get_legend_handles_labels()
    _accuracies(axes[len(series)], [pool["accuracy"] for pool in pools], titles(series))
    for ax in axes[len(series) + 1 :]:
        ax.set_axis_off()
    label_panels(axes[: len(series) + 1])
    figure.legend(handles, labels, loc="outside upper left", ncols=3)
    source = (
        "live weights on weak views after the last step, as the released code counts"
        if recorded
        else "averaged weights on the images as they are, after the last step"
    )
    seeds = ", ".join(str(one.first.seed) for one in series)
    return CaptionedFigure(
        figure,
        f"Pseudo-labels of the whole pool ({source}; no threshold; seeds {seeds}). TP and FP: right and wrong ones by "
        "predicted class, GT: true number of images; classes by GT, the largest first. Last panel: share of right "
        "ones.",
    )


def _pool(one: Series, recorded: bool) -> Mapping[str, Any]:
    pool: Mapping[str, Any] | None = (
        one.first.pool_lines[-1]["pool"] if recorded else one.first.summary.get("pool", {"truth_known": False})
    )
    assert pool is not None
    if not pool.get("truth_known", True):
        raise UserError(f"The true classes of the pool of {one.first.folder.path} are unknown; choose another run.")
    return pool


def _histogram(ax: Axes, pool: Mapping[str, Any], names: Sequence[str]) -> None:
    truth = np.array(pool["truth"])
    order = np.argsort(-truth, kind="stable")
    right = np.array(pool["true_positives"])[order]
    wrong = np.array(pool["predicted"])[order] - right
    x = np.arange(len(order))
    ax.bar(x, right, 0.8, color=TP, label="TP")
    ax.bar(x, wrong, 0.8, bottom=right, color=FP, label="FP")
    edges = np.append(x - 0.5, x[-1] + 0.5)
    ax.stairs(truth[order], edges, color=BLACK, linewidth=1.0, label="GT", baseline=None)
    if len(names) <= MAX_NAMED:
        labels = [plain(names[c], 10) for c in order]
        ax.set_xticks(x, labels, rotation=90 if max(len(label) for label in labels) > 2 else 0)
    else:
        ax.set_xticks([])
    ax.set_xlabel("class")
    ax.set_xlim(-0.7, len(order) - 0.3)
    ax.set_ylabel("images")


def _accuracies(ax: Axes, values: Sequence[float], names: Sequence[str]) -> None:
    x = np.arange(len(values))
    bars = ax.bar(x, [100 * value for value in values], 0.6, color=TP)
    ax.bar_label(bars, [f"{100 * value:.1f}" for value in values], fontsize=7, padding=1)
    rotate = max(len(name) for name in names) > 8 or len(names) > 3
    ax.set_xticks(x, list(names), rotation=35 if rotate else 0, ha="right" if rotate else "center")
    ax.set_ylim(0, 110)
    ax.set_yticks([0, 50, 100])
    ax.set_ylabel("right, %")
    ax.set_title("accuracy")
