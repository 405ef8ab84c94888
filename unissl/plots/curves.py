"""Training curves: accuracy, loss terms and the fraction of pseudo-labels in use, by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unissl.plots.charts import BLUE, GREY, HUES, ORANGE, PANEL, new_figure

Metrics = Sequence[Mapping[str, Any]]
T = TypeVar("T")


def learning_curves(metrics: Metrics) -> Figure:
    """Accuracy of every evaluation, loss terms, and the fraction of pseudo-labels in use."""
    figure, (left, middle, right) = new_figure(11, 3.2, columns=3)
    draw_accuracy(left, {"": metrics})
    left.set_title("Test accuracy (averaged weights)")
    draw_losses(middle, metrics)
    middle.set_title("Loss terms")
    if selected := selected_by_step(metrics):
        draw_selected(right, selected)
        right.set_title("Fraction of pseudo-labels in use")
    else:
        right.set_axis_off()
    return figure


def panel(draw: Callable[[Axes, T], None], values: T) -> Figure:
    """A figure of what one of the functions below draws."""
    figure, (ax,) = new_figure(*PANEL)
    draw(ax, values)
    return figure


def draw_accuracy(ax: Axes, runs: Mapping[str, Metrics]) -> None:
    """Test accuracy during training, of a run and, if given, its baseline."""
    for (name, metrics), colour in zip(runs.items(), (BLUE, GREY), strict=False):
        evaluations = [line for line in metrics if line["kind"] == "eval" and "accuracy" in line]
        curve = [e for e in evaluations if "student" not in e]
        ax.plot([e["step"] for e in curve], [e["accuracy"] for e in curve], color=colour, label=name)
        for e in evaluations[len(curve) :]:  # the student is another model
            point = (e["step"], e["accuracy"])
            ax.plot(*point, "o", color=colour, markersize=4)
            ax.annotate("distillation", point, (-4, 6), textcoords="offset points", ha="right", color=colour)
    if len(runs) > 1:
        ax.legend(frameon=False, loc="lower right")
    ax.set(ylim=(0, 1.02), xlabel="step")


def draw_losses(ax: Axes, metrics: Metrics) -> None:
    lines = [line for line in metrics if line["kind"] == "train"]
    steps = [line["step"] for line in lines]
    for name, hue in zip(lines[-1]["loss"] if lines else (), HUES, strict=False):
        losses = [line["loss"].get(name, math.nan) for line in lines]
        ax.plot(steps, losses, label=name, linewidth=1, color=hue)
    if lines:
        ax.legend(frameon=False)
    ax.set_xlabel("step")


def selected_by_step(metrics: Metrics) -> list[tuple[int, float]]:
    """Step and fraction of pseudo-labels in use; empty for a method that selects none."""
    lines = [line for line in metrics if line["kind"] == "train" and "selected" in line["logs"]]
    return [(line["step"], line["logs"]["selected"]) for line in lines]


def draw_selected(ax: Axes, selected: Sequence[tuple[int, float]]) -> None:
    ax.plot(*zip(*selected, strict=True), color=ORANGE, linewidth=1)
    ax.set(ylim=(0, 1.02), xlabel="step")
