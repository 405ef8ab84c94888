"""Charts of predictions: class distribution of the pool, confusion matrix, reliability."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unicodedata import category

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from unissl.evaluation.calibration import Bin
from unissl.utils.atomic import write_atomically

BLUE, ORANGE, GREY = "#2a6f97", "#e07a3f", "#8b949e"
CELL = "#2a6f98"
"""Cells that carry numbers: the same in light and dark, so that white on them stays legible."""
HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a6fd1", "#9a8f00")
"""Eight colours that colour-blind eyes can tell apart (after Okabe and Ito)."""
PANEL = (4.5, 2.9)
"""Inches: text stays legible when a chart is as narrow as a phone."""
MAX_CELLS, MAX_BARS = 20, 30


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as ``path``.svg and ``path``.png; the same figure gives the same bytes."""
    written = [path.with_suffix(".svg"), path.with_suffix(".png")]
    with matplotlib.rc_context({"svg.hashsalt": "unissl"}), ignore_missing_glyphs():
        write_atomically(written[0], lambda draft: figure.savefig(draft, format="svg", metadata={"Date": None}))
        write_atomically(written[1], lambda draft: figure.savefig(draft, format="png", dpi=120))
    return written


def ignore_missing_glyphs() -> warnings.catch_warnings[None]:
    """Silence the warning about letters that matplotlib's font lacks: in a page the reader's font shows them."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)
    for ax in axes[0]:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[0])


def class_distribution(pool: Mapping[str, Any], names: Sequence[str], title: bool = True) -> Figure:
    """The largest predicted classes of the pool as bars; correct and wrong predictions where the truth is known."""
    largest = np.argsort(-np.array(pool["predicted"]), kind="stable")[:MAX_BARS]
    figure, (ax,) = new_figure(PANEL[0], 0.8 + 0.24 * len(largest))
    y, counts = np.arange(len(largest)), np.array(pool["predicted"])[largest]
    if pool["truth_known"]:
        correct = np.array(pool["true_positives"])[largest]
        ax.barh(y, correct, color=BLUE, label="correct")
        ax.barh(y, counts - correct, left=correct, color=ORANGE, label="wrong")
        truth = np.array(pool["truth"])[largest]
        ax.plot(truth, y, "|", color="black", markersize=11, markeredgewidth=2, label="truth")
        ax.legend(frameon=False, loc="lower right")
    else:
        ax.bar_label(ax.barh(y, counts, color=BLUE), [f" {count:,}" for count in counts], fontsize=8)
    ax.set_yticks(y, [plain(names[c]) for c in largest])
    ax.invert_yaxis()
    ax.margins(x=0.14)
    ax.set_xlim(left=0)
    ax.set_xlabel("images of the pool")
    if title:
        result = f"{pool['accuracy']:.1%} correct" if pool["truth_known"] else "truth unknown"
        ax.set_title(f"Predicted classes of the pool: {result}")
    return figure


def confusion(summary: Mapping[str, Any], title: bool = True) -> Figure:
    """Confusion matrix, normalised by true class; of many classes those with the most errors."""
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
    labels, long = [plain(name) for name in names], max(len(name) for name in names) > 3
    ax.set_xticks(range(len(names)), labels, rotation=45 if long else 0, ha="right" if long else "center")
    ax.set_yticks(range(len(names)), labels)
    ax.set_xlabel("predicted")
    ax.set_ylabel("true")
    if title:
        ax.set_title(f"Test accuracy {summary['accuracy']['last']:.1%}")
    return figure


def condense(matrix: npt.NDArray[np.int64], names: Sequence[str]) -> tuple[npt.NDArray[np.int64], list[str]]:
    """If there are too many classes to show: those with the most errors, and the sum of all others."""
    if len(names) <= MAX_CELLS:
        return matrix, list(names)
    errors = matrix.sum(0) + matrix.sum(1) - 2 * matrix.diagonal()
    selected = np.sort(np.argsort(-errors, kind="stable")[: MAX_CELLS - 1])
    group = np.full(len(names), len(selected))
    group[selected] = np.arange(len(selected))
    small = np.zeros((MAX_CELLS, MAX_CELLS), dtype=np.int64)
    np.add.at(small, (group[:, None], group[None, :]), matrix)
    return small, [*(names[c] for c in selected), "(others)"]


def reliability_diagram(bins: Sequence[Bin]) -> Figure:
    """Accuracy by confidence; a calibrated model is on the diagonal."""
    figure, (ax,) = new_figure(*PANEL)
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--", label="perfectly calibrated")
    sizes = 20 + 180 * np.array([b.images for b in bins]) / max(b.images for b in bins)
    ax.plot([b.confidence for b in bins], [b.accuracy for b in bins], color=BLUE, linewidth=1)
    ax.scatter([b.confidence for b in bins], [b.accuracy for b in bins], s=sizes, color=BLUE, label="images")
    ax.set(xlim=(0, 1.06), ylim=(0, 1.08), xlabel="confidence", ylabel="accuracy")
    ax.legend(frameon=False, loc="upper left", markerscale=0.5)
    return figure


def printable(text: str) -> str:
    """Text without what a page cannot hold: control characters, undecodable bytes and unassigned code points."""
    if text.isascii() and text.isprintable():  # data URIs are, and would take seconds by letter
        return text
    return "".join("\ufffd" if category(c) in ("Cc", "Cs", "Cn") and c not in "\n\t" else c for c in text)


def plain(name: str, max_length: int = 20) -> str:
    """A class name as a chart label: on one line, shortened, and without mathematics for matplotlib."""
    line = printable(" ".join(name.split()))
    short = line if len(line) <= max_length else f"{line[: max_length - 1]}…"
    return short.replace("$", r"\$")
