"""Features of test images by the model of a run, for t-SNE, silhouette and similarities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unissl.config import check
from unissl.data import DataConfig
from unissl.errors import UserError
from unissl.inference.model import load_model
from unissl.report.samples import predict_with_features
from unissl.splits import SplitConfig
from unissl.splits.open_set import announce_data, load_data
from unissl.utils.progress import Progress
from unissl_paper.figures.series import FinishedRun

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
MAX_IMAGES = 2_000
"""Test images that are used, the same random ones for every run on the same data."""


def test_features(run: FinishedRun, count: int = MAX_IMAGES) -> tuple[Floats, Labels]:
    """Features (n, d) before the classifier, by averaged weights, and true classes (n,) of images of known classes."""
    data = check(DataConfig, run.config.get("data", {}), where="data")
    split = check(SplitConfig, run.config.get("split", {}), where="split")
    announce_data(data, split)
    dataset = load_data(data, split)
    if dataset.test is None or not (dataset.test.labels >= 0).any():
        raise UserError(f"{run.folder.path} has no test images with known classes; choose another run.")
    known = np.flatnonzero(dataset.test.labels >= 0)
    rows = np.sort(np.random.default_rng(0).permutation(known)[:count])
    model = load_model(run.folder)
    views = model.views(dataset.test.images)
    with Progress("extracting features", len(rows)) as progress:
        _, features = predict_with_features(model.module, views, rows, model.batch_size, progress)
    return features, dataset.test.labels[rows]
