"""The chart of the demo: what was labelled, what the pool holds, and what the methods reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unissl.plots.charts import BLUE, GREY, ORANGE, plain

MAX_SHOWN = 10
"""Labelled images in the chart."""


def demo_chart(
    summaries: Mapping[str, Mapping[str, Any]], images: npt.NDArray[np.uint8], names: Sequence[str]
) -> Figure:
    """Labelled images (n, h, w, channels) with their classes; class distribution of the pool, and how much of it the
    last method predicts correctly; test accuracies of all methods."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=(1, 2.4))[:, 0]
    total = len(images)
    upper.suptitle(f"All {total} labels" if total <= MAX_SHOWN else f"{MAX_SHOWN} of {total} labels", fontsize=12)
    for ax, image, name in zip(upper.subplots(1, MAX_SHOWN), images, names, strict=False):
        ax.imshow(image.squeeze(), cmap="gray_r", vmin=0, vmax=255)
        ax.set_title(plain(name), fontsize=10)
    for ax in upper.axes:
        ax.set_axis_off()
    left, right = lower.subplots(1, 2)
    _draw_pool(left, *list(summaries.items())[-1])
    _draw_accuracies(right, {name: summary["accuracy"]["last"] for name, summary in summaries.items()})
    return figure


def _draw_pool(ax: Axes, method: str, summary: Mapping[str, Any]) -> None:
    pool, names = summary["pool"], [plain(name) for name in summary["class_names"]]
    ax.bar(names, pool["truth"], color=GREY, alpha=0.4, label="in the pool")
    ax.bar(names, pool["true_positives"], color=ORANGE, width=0.5, label=f"found by {method}")
    ax.set(title=f"Unlabelled pool: {pool['images']} images", xlabel="class", ylabel="images")
    ax.margins(y=0.25)
    ax.legend(frameon=False, ncols=2, loc="upper center")
    ax.spines[["top", "right"]].set_visible(False)


def _draw_accuracies(ax: Axes, accuracies: Mapping[str, float]) -> None:
    bars = ax.barh(list(accuracies), list(accuracies.values()), color=[BLUE] * (len(accuracies) - 1) + [ORANGE])
    ax.bar_label(bars, [f" {accuracy:.1%}" for accuracy in accuracies.values()])
    ax.set_xlim(0, 1.15)
    ax.set_xticks(np.linspace(0, 1, 6), [f"{share:.0%}" for share in np.linspace(0, 1, 6)])
    ax.invert_yaxis()
    ax.set_title("Test accuracy")
    ax.spines[["top", "right"]].set_visible(False)
