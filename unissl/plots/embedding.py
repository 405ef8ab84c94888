"""The embedding map: features of images projected to the plane by t-SNE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from unissl.plots.charts import GREY, HUES, PANEL, new_figure, plain
from unissl.types import Floats

ITERATIONS = 400
"""Less than half of scikit-learn's default: the clusters are stable by then, and only their outlines still move."""
MARKERS = ("o", "^")
MAX_HUES = 12
"""Classes with a colour of their own."""


def project_2d(features: Floats) -> Floats:
    """Points (n, 2) of features (n, D): t-SNE after PCA, or PCA alone for a few points."""
    if len(features) < 3 or float(features.std(0).max()) < 1e-9:
        return np.zeros((len(features), 2), dtype=np.float32)
    reduced = PCA(min(30, *features.shape), random_state=0).fit_transform(features.astype(np.float64))
    if len(features) < 20 or reduced.shape[1] < 3:
        return np.asarray(np.pad(reduced, ((0, 0), (0, 2)))[:, :2], dtype=np.float32)
    perplexity = min(30.0, (len(features) - 1) / 3)
    with threadpool_limits(1):  # for so few points threads mostly wait for each other
        points = TSNE(perplexity=perplexity, max_iter=ITERATIONS, random_state=0).fit_transform(reduced)
    return np.asarray(points, dtype=np.float32)


def embedding_map(
    points: Floats, classes: npt.NDArray[np.int64], is_labelled: npt.NDArray[np.bool_], names: Sequence[str]
) -> Figure:
    """Images as points (n, 2) in the colour of their predicted class (n,); labelled ones are larger, with a rim."""
    counts = np.bincount(classes, minlength=len(names))
    ranked = [int(c) for c in np.argsort(-counts, kind="stable") if counts[c]]
    coloured = sorted(ranked[:MAX_HUES]) if len(ranked) <= MAX_HUES else sorted(ranked[: MAX_HUES - 1])
    others = ~np.isin(classes, coloured)
    figure, (ax,) = new_figure(PANEL[0], 4.3)
    handles, labels = [], []
    if others.any():
        ax.scatter(points[others, 0], points[others, 1], s=7, color=GREY, alpha=0.5, linewidths=0)
        handles.append(ax.scatter([], [], s=24, color=GREY))
        labels.append("(others)")
    for number, c in enumerate(coloured):
        style: dict[str, Any] = {"color": HUES[number % len(HUES)], "marker": MARKERS[number // len(HUES)]}
        pool, labelled = points[(classes == c) & ~is_labelled], points[(classes == c) & is_labelled]
        ax.scatter(pool[:, 0], pool[:, 1], s=9, alpha=0.65, linewidths=0, **style)
        ax.scatter(labelled[:, 0], labelled[:, 1], s=34, linewidths=0.9, edgecolors="black", zorder=3, **style)
        handles.insert(number, ax.scatter([], [], s=24, **style))
        labels.insert(number, plain(names[c], 16))
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    columns = 3 if max(len(label) for label in labels) > 6 else 5
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure
