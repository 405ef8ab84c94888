"""Pictures of a run's answers: the pool, mistakes, reliability, the map."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unicodedata import category

import matplotlib
import numpy as np
import numpy.typing as npt

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from unissl.evaluate.calibration import Bin
from unissl.record import write_atomically

BLUE, ORANGE, GREY = "#2a6f97", "#e07a3f", "#8b949e"
CELL = "#2a6f98"
"""Cells that carry numbers: the same in light and dark, so that white on them stays legible."""
HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a6fd1", "#9a8f00")
"""Eight colours that colour-blind eyes can tell apart (after Okabe and Ito)."""
SHAPES = ("o", "^")
PANEL = (4.5, 2.9)
"""Inches: text stays legible when a picture is made as narrow as a phone."""
MOST_CELLS, MOST_BARS, MOST_HUES = 20, 30, 12


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a picture as ``path``.svg and ``path``.png; the same picture gives the same bytes."""
    written = [path.with_suffix(".svg"), path.with_suffix(".png")]
    with matplotlib.rc_context({"svg.hashsalt": "unissl"}), rare_letters_allowed():
        write_atomically(written[0], lambda draft: figure.savefig(draft, format="svg", metadata={"Date": None}))
        write_atomically(written[1], lambda draft: figure.savefig(draft, format="png", dpi=120))
    return written


def rare_letters_allowed() -> warnings.catch_warnings[None]:
    """Letters that matplotlib's font lacks are measured roughly; in a page the reader's own font shows them."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)
    for ax in axes[0]:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[0])


def pseudo_label_histogram(summary: Mapping[str, Any]) -> Figure:
    """Predicted classes of the pool; right and wrong ones stacked, with the truth as a line, where it is known."""
    figure, (ax,) = new_figure(max(5.0, 0.45 * len(summary["class_names"]) + 2), 3.6)
    _draw_pool(ax, summary["pool"], summary["class_names"])
    return figure


def comparison(summaries: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Test accuracy of several methods, and what the last one makes of the pool."""
    figure, (left, right) = new_figure(10, 3.6, columns=2)
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


def class_mix(pool: Mapping[str, Any], names: Sequence[str]) -> Figure:
    """The largest predicted classes of the pool as bars beside their names; right and wrong where that is known."""
    shown = np.argsort(-np.array(pool["predicted"]), kind="stable")[:MOST_BARS]
    figure, (ax,) = new_figure(PANEL[0], 0.8 + 0.24 * len(shown))
    y, counts = np.arange(len(shown)), np.array(pool["predicted"])[shown]
    if pool["truth_known"]:
        right = np.array(pool["true_positives"])[shown]
        ax.barh(y, right, color=BLUE, label="right")
        ax.barh(y, counts - right, left=right, color=ORANGE, label="wrong")
        truth = np.array(pool["truth"])[shown]
        ax.plot(truth, y, "|", color="black", markersize=11, markeredgewidth=2, label="truth")
        ax.legend(frameon=False, loc="lower right")
    else:
        ax.bar_label(ax.barh(y, counts, color=BLUE), [f" {count:,}" for count in counts], fontsize=8)
    ax.set_yticks(y, [plain(names[c]) for c in shown])
    ax.invert_yaxis()
    ax.margins(x=0.14)
    ax.set_xlim(left=0)
    ax.set_xlabel("images of the pool")
    return figure


def confusion(summary: Mapping[str, Any], title: bool = True) -> Figure:
    """Confusion matrix, each row as shares of its true class; of many classes those with the most mistakes."""
    matrix, names = condense(np.array(summary["confusion_matrix"]), summary["class_names"])
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    side = max(3.6, 0.34 * len(names) + 1.1)
    figure, (ax,) = new_figure(max(side, PANEL[0]), side)
    for row, column in np.ndindex(*matrix.shape):
        if matrix[row, column]:
            share = shares[row, column]
            ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color=CELL, alpha=float(share), linewidth=0))
            colour, text = "white" if share > 0.5 else "black", str(matrix[row, column])
            ax.text(column, row, text, ha="center", va="center", color=colour, fontsize=7)
    ax.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5), aspect="equal")
    ax.set_yticks(range(len(names)), [plain(name) for name in names])
    _name_classes(ax, names)
    ax.set_xlabel("predicted")
    ax.set_ylabel("true")
    if title:
        ax.set_title(f"Test accuracy {summary['accuracy']['last']:.1%}")
    return figure


def condense(matrix: npt.NDArray[np.int64], names: Sequence[str]) -> tuple[npt.NDArray[np.int64], list[str]]:
    """The classes with the most mistakes, and all others added up as one, where there are too many to show."""
    if len(names) <= MOST_CELLS:
        return matrix, list(names)
    mistakes = matrix.sum(0) + matrix.sum(1) - 2 * matrix.diagonal()
    shown = np.sort(np.argsort(-mistakes, kind="stable")[: MOST_CELLS - 1])
    group = np.full(len(names), len(shown))
    group[shown] = np.arange(len(shown))
    small = np.zeros((MOST_CELLS, MOST_CELLS), dtype=np.int64)
    np.add.at(small, (group[:, None], group[None, :]), matrix)
    return small, [*(names[c] for c in shown), "(others)"]


def reliability_diagram(bins: Sequence[Bin]) -> Figure:
    """How often the model is right when it is so and so sure; on the diagonal its word is as good as its result."""
    figure, (ax,) = new_figure(*PANEL)
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--", label="perfectly calibrated")
    sizes = 20 + 180 * np.array([b.images for b in bins]) / max(b.images for b in bins)
    ax.plot([b.confidence for b in bins], [b.accuracy for b in bins], color=BLUE, linewidth=1)
    ax.scatter([b.confidence for b in bins], [b.accuracy for b in bins], s=sizes, color=BLUE, label="test images")
    ax.set(xlim=(0, 1.06), ylim=(0, 1.08), xlabel="confidence", ylabel="share right")
    ax.legend(frameon=False, loc="upper left", markerscale=0.5)
    return figure


def feature_map(
    points: npt.NDArray[np.float32], classes: npt.NDArray[np.int64], given: npt.NDArray[np.bool_], names: Sequence[str]
) -> Figure:
    """Images as points (n, 2) in the colour of their predicted class; the labelled ones are larger, with a rim."""
    counts = np.bincount(classes, minlength=len(names))
    ranked = [int(c) for c in np.argsort(-counts, kind="stable") if counts[c]]
    named = sorted(ranked[:MOST_HUES]) if len(ranked) <= MOST_HUES else sorted(ranked[: MOST_HUES - 1])
    rest = ~np.isin(classes, named)
    figure, (ax,) = new_figure(PANEL[0], 4.3)
    handles, labels = [], []
    if rest.any():
        ax.scatter(points[rest, 0], points[rest, 1], s=7, color=GREY, alpha=0.5, linewidths=0)
        handles.append(ax.scatter([], [], s=24, color=GREY))
        labels.append("(others)")
    for place, c in enumerate(named):
        look: dict[str, Any] = {"color": HUES[place % len(HUES)], "marker": SHAPES[place // len(HUES)]}
        pool, ours = points[(classes == c) & ~given], points[(classes == c) & given]
        ax.scatter(pool[:, 0], pool[:, 1], s=9, alpha=0.65, linewidths=0, **look)
        ax.scatter(ours[:, 0], ours[:, 1], s=34, linewidths=0.9, edgecolors="black", zorder=3, **look)
        handles.insert(place, ax.scatter([], [], s=24, **look))
        labels.insert(place, plain(names[c], 16))
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    columns = 3 if max(len(label) for label in labels) > 6 else 5
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _name_classes(ax: Axes, names: Sequence[str]) -> None:
    if len(names) <= MOST_CELLS:
        long = max(len(name) for name in names) > 3
        shown = [plain(name) for name in names]
        ax.set_xticks(range(len(names)), shown, rotation=45 if long else 0, ha="right" if long else "center")


def printable(text: str) -> str:
    """Text without what a page cannot hold: control characters, the odd bytes of file names, what is no letter yet."""
    if text.isascii() and text.isprintable():  # as images are, which would take seconds letter by letter
        return text
    return "".join("\ufffd" if category(c) in ("Cc", "Cs", "Cn") and c not in "\n\t" else c for c in text)


def plain(name: str, longest: int = 20) -> str:
    """A class name that fits beside a picture: on one line, cut, and without a meaning to matplotlib."""
    line = printable(" ".join(name.split()))
    cut = line if len(line) <= longest else f"{line[: longest - 1]}…"
    return cut.replace("$", r"\$")
