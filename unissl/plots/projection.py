"""Features as points of a plane."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

Floats = npt.NDArray[np.float32]
ITERATIONS = 400
"""Less than half of scikit-learn's own number: islands stand by then, and only their outlines would still move."""


def project_2d(features: Floats) -> Floats:
    """Points that keep their neighbours: t-SNE after PCA, or PCA alone for a few points."""
    if len(features) < 3 or float(features.std(0).max()) < 1e-9:
        return np.zeros((len(features), 2), dtype=np.float32)
    reduced = PCA(min(30, *features.shape), random_state=0).fit_transform(features.astype(np.float64))
    if len(features) < 20 or reduced.shape[1] < 3:
        return np.asarray(np.pad(reduced, ((0, 0), (0, 2)))[:, :2], dtype=np.float32)
    perplexity = min(30.0, (len(features) - 1) / 3)
    with threadpool_limits(1):  # for so few points threads mostly wait for each other, and on a busy machine for long
        placed = TSNE(perplexity=perplexity, max_iter=ITERATIONS, random_state=0).fit_transform(reduced)
    return np.asarray(placed, dtype=np.float32)
