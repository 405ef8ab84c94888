"""Failure of structural consensus: mass of G from small classes on the largest one, by imbalance and length of the
walk.

The paper states that consensus may be dominated by majority neighbourhoods when classes are too rare or diffusion is
too strong. Here G is computed for the pool of finished runs: for an image, the mass of its row of G without the
diagonal on images of the largest class, and on its own class. A long walk forgets its start, so every image gets the
same row, in which small classes hardly appear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unissl.evaluation.diagnostics import class_mass
from unissl_paper.figures.restored import PoolGraph, pool_graph
from unissl_paper.figures.series import Series, titles
from unissl_paper.figures.style import PAGE, CaptionedFigure, label_panels, legend_outside, panels, style_of

LENGTHS = (1, 2, 3, 5, 8, 12, 20)
"""Values of beta for the walks on the trained features."""
MAX_MARKED = 20
TAIL = 1 / 3
"""Share of the classes that count as small; the largest is never one."""


def draw(series: Sequence[Series]) -> CaptionedFigure:
    figure, (left, right) = panels(1, 2, PAGE, 2.7, share_y=True)
    for index, (one, title) in enumerate(zip(series, titles(series), strict=True)):
        graph = pool_graph(one.first)
        colour, _ = style_of(index)
        order = np.argsort(-graph.counts, kind="stable")
        order = order[graph.counts[order] > 0]
        majority, same_class = masses(graph, graph.walk.steps)
        rank = np.arange(1, len(order) + 1)
        marker = "o" if len(order) <= MAX_MARKED else ""
        left.plot(rank, 100 * majority[order], color=colour, marker=marker, label=title)
        left.plot(rank, 100 * same_class[order], color=colour, linestyle=(0, (3, 1.5)), linewidth=0.9)
        tail = order[1:][-max(1, round(TAIL * len(order))) :]
        swept = [(100 * m[tail].mean(), 100 * o[tail].mean()) for m, o in (masses(graph, n) for n in LENGTHS)]
        right.plot(LENGTHS, [m for m, _ in swept], color=colour, marker="o")
        right.plot(LENGTHS, [o for _, o in swept], color=colour, linestyle=(0, (3, 1.5)), linewidth=0.9)
        share = 100 * graph.counts.max() / graph.counts.sum()
        right.plot([LENGTHS[-1] * 1.04, LENGTHS[-1] * 1.1], [share, share], color=colour, linewidth=2, clip_on=False)
    left.set(xlabel="class, by size in the pool (1: largest)", ylabel="mass of G, %")
    left.set_title("by class, at the trained β")
    right.set(xlabel="β, steps of the walk", xscale="log")
    right.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
    right.minorticks_off()
    right.set_title("the smallest third of the classes")
    left.set_ylim(bottom=0)
    label_panels((left, right))
    legend_outside(figure, *left.get_legend_handles_labels())
    seeds = ", ".join(str(one.first.seed) for one in series)
    return CaptionedFigure(
        figure,
        "Mass of G (diagonal left out, weak views, groups of a training batch's size, last checkpoint) that images of "
        "a class put on the largest class of the pool (solid) and on their own class (dashed). (a) By class. (b) Mean "
        "over the smallest third of the classes as the walk gets longer on the same features; ticks at the right: "
        f"the largest class's share of the pool. Seeds {seeds}.",
    )


def masses(graph: PoolGraph, steps: int) -> tuple[np.ndarray[Any, np.dtype[np.float64]], ...]:
    """By class, the mass on the largest class and on the class itself."""
    mass = class_mass(graph.groups, graph.truth, replace(graph.walk, steps=steps), graph.num_classes)
    return mass[:, int(graph.counts.argmax())], mass.diagonal()
