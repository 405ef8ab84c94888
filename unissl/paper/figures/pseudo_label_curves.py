"""Accuracy and macro-F1 of pseudo-labels over training: what each part of SAGE adds (V1 to V4)."""

from __future__ import annotations

from collections.abc import Sequence

from unissl.paper.figures.curves import draw_curve, over_training
from unissl.paper.figures.series import Series, titles
from unissl.paper.figures.style import PAGE, Drawn, legend_outside, letter, panels


def draw(series: Sequence[Series]) -> Drawn:
    figure, (left, right) = panels(1, 2, PAGE, 2.3)
    for place, (one, title) in enumerate(zip(series, titles(series), strict=True)):
        draw_curve(left, one, lambda pool: pool["accuracy"], place, title)
        draw_curve(right, one, lambda pool: pool["f1"], place, None)
    left.set_title("pseudo-label accuracy")
    right.set_title("pseudo-label macro-F1")
    over_training((left, right))
    letter((left, right))
    legend_outside(figure, *left.get_legend_handles_labels())
    return Drawn(
        figure,
        "Pseudo-labels of the pool over training (live weights, weak views, no threshold): share of right ones, and F1 "
        "averaged over the classes that occur. Line: mean over seeds; band: lowest to highest seed.",
    )
