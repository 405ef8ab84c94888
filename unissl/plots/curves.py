"""Training curves: accuracy, loss terms and the fraction of pseudo-labels in use, by step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unissl.plots.charts import BLUE, GREY, HUES, ORANGE, PANEL, new_figure

Metrics = Sequence[Mapping[str, Any]]


def learning_curves(metrics: Metrics) -> Figure:
    """Accuracy of every evaluation, loss terms, and the fraction of pseudo-labels in use."""
    figure, (left, middle, right) = new_figure(11, 3.2, columns=3)
    _draw_accuracy(left, metrics, "", BLUE)
    left.set_title("Test accuracy (averaged weights)")
    _draw_losses(middle, metrics)
    middle.set_title("Loss terms")
    if _selected(metrics):
        _draw_selected(right, metrics)
        right.set_title("Fraction of pseudo-labels in use")
    else:
        right.set_axis_off()
    return figure


def accuracy_curves(runs: Mapping[str, Metrics]) -> Figure:
    """Test accuracy during training, of a run and its baseline."""
    figure, (ax,) = new_figure(*PANEL)
    for (name, metrics), colour in zip(runs.items(), (BLUE, GREY), strict=False):
        _draw_accuracy(ax, metrics, name, colour)
    if len(runs) > 1:
        ax.legend(frameon=False, loc="lower right")
    return figure


def loss_curves(metrics: Metrics) -> Figure:
    figure, (ax,) = new_figure(*PANEL)
    _draw_losses(ax, metrics)
    return figure


def selected_curve(metrics: Metrics) -> Figure | None:
    """Fraction of pseudo-labels in use; None for a method that selects none."""
    if not _selected(metrics):
        return None
    figure, (ax,) = new_figure(*PANEL)
    _draw_selected(ax, metrics)
    return figure


def _draw_accuracy(ax: Axes, metrics: Metrics, name: str, colour: str) -> None:
    evaluations = [line for line in metrics if line["kind"] == "eval" and "accuracy" in line]
    curve = [e for e in evaluations if "student" not in e]
    ax.plot([e["step"] for e in curve], [e["accuracy"] for e in curve], color=colour, label=name)
    for e in evaluations[len(curve) :]:  # the student is another model
        ax.plot([e["step"]], [e["accuracy"]], "o", color=colour, markersize=4)
        ax.annotate(
            "distillation", (e["step"], e["accuracy"]), (-4, 6), textcoords="offset points", ha="right", color=colour
        )
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("step")


def _draw_losses(ax: Axes, metrics: Metrics) -> None:
    steps = [line for line in metrics if line["kind"] == "train"]
    for name, hue in zip(steps[-1]["loss"] if steps else (), HUES, strict=False):
        ax.plot(
            [s["step"] for s in steps],
            [s["loss"].get(name, math.nan) for s in steps],
            label=name,
            linewidth=1,
            color=hue,
        )
    if steps:
        ax.legend(frameon=False)
    ax.set_xlabel("step")


def _selected(metrics: Metrics) -> list[tuple[int, float]]:
    steps = [line for line in metrics if line["kind"] == "train"]
    return [(s["step"], s["logs"]["selected"]) for s in steps if "selected" in s["logs"]]


def _draw_selected(ax: Axes, metrics: Metrics) -> None:
    ax.plot(*zip(*_selected(metrics), strict=True), color=ORANGE, linewidth=1)
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("step")
