"""Correction ratio over training: are votes by relations between images better than pseudo-labels?

The paper shows this ratio without the rule that turns relations into labels. Ours: the vote of an image is the class
with the largest sum of G over the other images of its group with that pseudo-label. The correction ratio is the share
of wrong pseudo-labels whose vote is right. It does not show by itself that votes are better, so the share of right
pseudo-labels whose vote is wrong, and the accuracy of both, are drawn too.
"""

from __future__ import annotations

from collections.abc import Sequence

from unissl_paper.figures.curves import draw_curve, over_training
from unissl_paper.figures.series import Series, titles
from unissl_paper.figures.style import PAGE, CaptionedFigure, label_panels, legend_outside, panels


def draw(series: Sequence[Series]) -> CaptionedFigure:
    figure, (left, right) = panels(1, 2, PAGE, 2.4)
    for index, (one, title) in enumerate(zip(series, titles(series), strict=True)):
        draw_curve(left, one, lambda pool: pool.get("corrected"), index, title)
        draw_curve(left, one, lambda pool: pool.get("spoiled"), index, None, faint=True)
        draw_curve(right, one, lambda pool: pool.get("vote_accuracy"), index, None)
        draw_curve(right, one, lambda pool: pool["accuracy"], index, None, faint=True)
    left.set_title("corrected (solid), spoiled (dashed)")
    right.set_title("right: votes (solid), pseudo-labels (dashed)")
    over_training((left, right))
    label_panels((left, right))
    handles, labels = left.get_legend_handles_labels()
    if len(series) > 1:
        legend_outside(figure, handles, labels)
    return CaptionedFigure(
        figure,
        "Correction ratio over training, by a rule of ours: the other images' pseudo-labels, weighted by G (weak "
        "views, groups of a training batch's size, live weights, the image itself left out), vote for a class. (a) Of "
        "the wrongly pseudo-labelled images, the share whose vote is right; dashed: of the rightly labelled ones, the "
        "share whose vote is wrong. (b) Accuracy of votes and of pseudo-labels. Line: mean over seeds; band: lowest "
        "to highest seed.",
    )
