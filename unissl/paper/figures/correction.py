"""Correction ratio over training: do relations between images know better than pseudo-labels?

The paper shows this ratio without the rule that turns relations into labels. Ours: each image hears the pseudo-labels
of the other images of its group, weighted by G; the class with the most weight is the vote. The correction ratio is the
share of wrongly pseudo-labelled images whose vote is right. By itself it cannot say that relations are better, so the
share of rightly labelled images that the vote would spoil, and the accuracy of both, are drawn beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from unissl.paper.figures.curves import draw_curve, over_training
from unissl.paper.figures.series import Series, titles
from unissl.paper.figures.style import PAGE, Drawn, legend_outside, letter, panels


def draw(series: Sequence[Series]) -> Drawn:
    figure, (left, right) = panels(1, 2, PAGE, 2.4)
    for place, (one, title) in enumerate(zip(series, titles(series), strict=True)):
        draw_curve(left, one, lambda pool: pool.get("corrected"), place, title)
        draw_curve(left, one, lambda pool: pool.get("spoiled"), place, None, faint=True)
        draw_curve(right, one, lambda pool: pool.get("vote_accuracy"), place, None)
        draw_curve(right, one, lambda pool: pool["accuracy"], place, None, faint=True)
    left.set_title("corrected (solid), spoiled (dashed)")
    right.set_title("right: votes (solid), pseudo-labels (dashed)")
    over_training((left, right))
    letter((left, right))
    handles, labels = left.get_legend_handles_labels()
    if len(series) > 1:
        legend_outside(figure, handles, labels)
    return Drawn(
        figure,
        "Correction ratio over training, by a rule of ours: the other images' pseudo-labels, weighted by G (weak "
        "views, groups of a training batch's size, live weights, the image itself left out), vote for a class. (a) Of "
        "the wrongly pseudo-labelled images, the share whose vote is right; dashed: of the rightly labelled ones, the "
        "share whose vote is wrong. (b) Accuracy of votes and of pseudo-labels. Line: mean over seeds; band: lowest "
        "to highest seed.",
    )
