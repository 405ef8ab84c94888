"""Cosine similarity of test features between classes (lower is better) and within them (higher is better)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unissl_paper.figures.bars import draw_bars
from unissl_paper.figures.features import MAX_IMAGES, Floats, Labels, test_features
from unissl_paper.figures.series import Series, titles
from unissl_paper.figures.style import HUES, PAGE, CaptionedFigure, label_panels, panels


def draw(series: Sequence[Series]) -> CaptionedFigure:
    pairs = [[class_similarities(*test_features(run)) for run in one.runs] for one in series]
    figure, (left, right) = panels(1, 2, PAGE, 2.2)
    for ax, side, colour, title in ((left, 0, HUES[1], "between classes ↓"), (right, 1, HUES[0], "within classes ↑")):
        draw_bars(ax, [[pair[side] for pair in runs] for runs in pairs], titles(series), colour)
        ax.set_title(title)
    left.set_ylabel("cosine similarity")
    label_panels((left, right))
    return CaptionedFigure(
        figure,
        f"Cosine similarity of the features of up to {MAX_IMAGES:,} test images (averaged weights, not centred): "
        "mean over pairs of images of two classes, averaged over pairs of classes; and mean over pairs of different "
        "images of a class, averaged over classes. Bar: mean over seeds; dots: seeds. The paper does not say its "
        "convention.",
    )


def class_similarities(features: Floats, truth: Labels) -> tuple[float, float]:
    """Between and within classes. Sums of unit rows give both: the mean over pairs is a product of two sums."""
    unit = features.astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    members = [unit[truth == c] for c in np.unique(truth)]
    means = np.stack([rows.mean(0) for rows in members])
    products = means @ means.T
    between = products[~np.eye(len(means), dtype=bool)]
    within = [
        (float(rows.sum(0) @ rows.sum(0)) - float((rows**2).sum())) / (len(rows) * (len(rows) - 1))
        for rows in members
        if len(rows) > 1
    ]
    return float(between.mean()) if len(between) else float("nan"), float(np.mean(within)) if within else float("nan")
