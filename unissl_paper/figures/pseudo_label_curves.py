"""Accuracy and macro-F1 of pseudo-labels over training, for the ablation of SAGE (V1 to V4)."""

from __future__ import annotations

from collections.abc import Sequence

from unissl_paper.figures.curves import draw_curve, over_training
from unissl_paper.figures.series import Series, titles
from unissl_paper.figures.style import PAGE, CaptionedFigure, label_panels, legend_outside, panels


def draw(series: Sequence[Series]) -> CaptionedFigure:
    figure, (left, right) = panels(1, 2, PAGE, 2.3)
    for index, (one, title) in enumerate(zip(series, titles(series), strict=True)):
        draw_curve(left, one, lambda pool: pool["accuracy"], index, title)
        draw_curve(right, one, lambda pool: pool["f1"], index, None)
    left.set_title("pseudo-label accuracy")
    right.set_title("pseudo-label macro-F1")
    over_training((left, right))
    label_panels((left, right))
    legend_outside(figure, *left.get_legend_handles_labels())
    return CaptionedFigure(
        figure,
        "Pseudo-labels of the pool over training (live weights, weak views, no threshold): share of right ones, and F1 "
        "averaged over the classes that occur. Line: mean over seeds; band: lowest to highest seed.",
    )
