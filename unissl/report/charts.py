"""Pictures of a run, drawn from its summary and metrics alone. The only file that knows matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE = "#2a6f97", "#e07a3f"
Metrics = Sequence[Mapping[str, Any]]


def draw_all(folder: Path, summary: Mapping[str, Any], metrics: Metrics) -> list[Path]:
    """Every picture the run has data for, as SVG and PNG."""
    folder.mkdir(exist_ok=True)
    figures = {"learning_curves": learning_curves(metrics)}
    if "pool" in summary:
        figures["pseudo_labels"] = pseudo_label_histogram(summary)
    if "confusion_matrix" in summary:
        figures["confusion_matrix"] = confusion(summary)
    return [path for name, figure in figures.items() for path in save(figure, folder / name)]


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a picture as ``path``.svg and ``path``.png; the same picture gives the same bytes."""
    written = [path.with_suffix(".svg"), path.with_suffix(".png")]
    with matplotlib.rc_context({"svg.hashsalt": "unissl"}):
        figure.savefig(written[0], metadata={"Date": None})
        figure.savefig(written[1], dpi=120)
    return written


def _figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)
    for ax in axes[0]:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[0])


def pseudo_label_histogram(summary: Mapping[str, Any]) -> Figure:
    """Predicted classes of the pool; right and wrong ones stacked, with the truth as a line, where it is known."""
    figure, (ax,) = _figure(max(5.0, 0.45 * len(summary["class_names"]) + 2), 3.6)
    _draw_pool(ax, summary["pool"], summary["class_names"])
    return figure


def comparison(summaries: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Test accuracy of several methods, and what the last one makes of the pool."""
    figure, (left, right) = _figure(10, 3.6, columns=2)
    accuracies = [summary["accuracy"]["last"] for summary in summaries.values()]
    bars = left.barh(list(summaries), accuracies, color=[BLUE] * (len(summaries) - 1) + [ORANGE])
    left.bar_label(bars, [f" {accuracy:.1%}" for accuracy in accuracies])
    left.set_xlim(0, 1.12)
    left.set_xticks(np.linspace(0, 1, 6), [f"{share:.0%}" for share in np.linspace(0, 1, 6)])
    left.invert_yaxis()
    left.set_title("Test accuracy")
    name, summary = list(summaries.items())[-1]
    _draw_pool(right, summary["pool"], summary["class_names"])
    right.set_title(f"{name}: {right.get_title()[0].lower()}{right.get_title()[1:]}")
    return figure


def _draw_pool(ax: Axes, pool: Mapping[str, Any], names: Sequence[str]) -> None:
    x = np.arange(len(names))
    if pool["truth_known"]:
        ax.bar(x, pool["true_positives"], color=BLUE, label="right")
        ax.bar(x, pool["false_positives"], bottom=pool["true_positives"], color=ORANGE, label="wrong")
        ax.plot(x, pool["truth"], "_", color="black", markersize=14, markeredgewidth=2, label="truth")
        ax.legend(frameon=False)
        ax.set_title(f"Classes given to the pool: {pool['accuracy']:.1%} right")
    else:
        ax.bar(x, pool["predicted"], color=BLUE)
        ax.set_title("Classes given to the pool (its truth is not known)")
    _name_classes(ax, names)
    ax.set_ylabel("images")


def learning_curves(metrics: Metrics) -> Figure:
    """Accuracy after every epoch, loss terms, and the share of pseudo-labels in use."""
    evaluations = [line for line in metrics if line["kind"] == "eval" and "accuracy" in line]
    steps = [line for line in metrics if line["kind"] == "train"]
    figure, (left, middle, right) = _figure(11, 3.2, columns=3)
    left.plot([e["step"] for e in evaluations], [e["accuracy"] for e in evaluations], color=BLUE)
    left.set_ylim(0, 1.02)
    left.set_title("Test accuracy (averaged weights)")
    for name in steps[-1]["loss"] if steps else ():
        middle.plot([s["step"] for s in steps], [s["loss"][name] for s in steps], label=name, linewidth=1)
    middle.set_title("Loss terms")
    middle.legend(frameon=False)
    selected = [(s["step"], s["logs"]["selected"]) for s in steps if "selected" in s["logs"]]
    if selected:
        right.plot(*zip(*selected, strict=True), color=ORANGE, linewidth=1)
        right.set_ylim(0, 1.02)
        right.set_title("Share of pseudo-labels in use")
    else:
        right.set_axis_off()
    for ax in (left, middle, right):
        ax.set_xlabel("step")
    return figure


def confusion(summary: Mapping[str, Any]) -> Figure:
    """Confusion matrix, each row as shares of its true class."""
    matrix, names = np.array(summary["confusion_matrix"]), summary["class_names"]
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    side = max(4.0, 0.42 * len(names) + 1.5)
    figure, (ax,) = _figure(side + 0.6, side)
    image = ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=ax, shrink=0.8)
    if len(names) <= 20:
        for row, column in np.ndindex(*matrix.shape):
            if matrix[row, column]:
                colour = "white" if shares[row, column] > 0.5 else "black"
                text = str(matrix[row, column])
                ax.text(column, row, text, ha="center", va="center", color=colour, fontsize=7)
        ax.set_yticks(range(len(names)), names)
    _name_classes(ax, names)
    ax.set_xlabel("predicted")
    ax.set_ylabel("true")
    ax.set_title(f"Test accuracy {summary['accuracy']['last']:.1%}")
    return figure


def _name_classes(ax: Axes, names: Sequence[str]) -> None:
    if len(names) <= 20:
        long = max(len(name) for name in names) > 3
        ax.set_xticks(range(len(names)), names, rotation=45 if long else 0, ha="right" if long else "center")
