"""Silhouette coefficient of test features."""

from __future__ import annotations

from collections.abc import Sequence

from sklearn.metrics import silhouette_score

from unissl.errors import UserError
from unissl_paper.figures.bars import draw_bars
from unissl_paper.figures.features import MAX_IMAGES, Floats, Labels, test_features
from unissl_paper.figures.series import Series, titles
from unissl_paper.figures.style import COLUMN, HUES, CaptionedFigure, panels


def draw(series: Sequence[Series]) -> CaptionedFigure:
    values = [[silhouette(*test_features(run)) for run in one.runs] for one in series]
    figure, (ax,) = panels(1, 1, COLUMN, 2.2)
    draw_bars(ax, values, titles(series), HUES[0])
    ax.set_ylabel("silhouette coefficient")
    return CaptionedFigure(
        figure,
        f"Mean silhouette coefficient of the features of up to {MAX_IMAGES:,} test images (averaged weights, "
        "Euclidean distances, true classes; from -1 to 1, higher is better). Bar: mean over seeds; dots: seeds. The "
        "paper does not say its metric or sample.",
    )


def silhouette(features: Floats, truth: Labels) -> float:
    if len(set(truth.tolist())) < 2:
        raise UserError("A silhouette needs test images of at least two classes; choose a run with more of them.")
    return float(silhouette_score(features, truth))
