"""Metrics of a trained model on labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unissl.data import load_test
from unissl.errors import UserError, did_you_mean
from unissl.evaluation.metrics import Evaluation
from unissl.inference.model import Model
from unissl.types import OOD, UNLABELLED, ImageTable, Labels


def evaluate_model(model: Model, images: Any, labels: Sequence[str | int] | npt.ArrayLike | None = None) -> Evaluation:
    """Accuracy, balanced accuracy, recalls, confusion matrix and 95 % interval.

    Args:
        model: The model.
        images: With ``labels``, any images that :meth:`Model.predict` takes. Without, a folder with one subfolder per
            class, a Parquet file with labels, or an :class:`ImageTable`.
        labels: A class name or index for each image; -2 for out-of-distribution images.
    """
    if labels is not None:
        truth, table = _class_indices(labels, model.class_names), model.predict(images)
        if len(table) != len(truth):
            raise UserError(f"There are {len(table)} images and {len(truth)} labels; give one label per image.")
        read = table["class_index"] >= 0
        if not (truth[read] >= 0).any():
            raise UserError("No labelled image could be read; check the images.")
        columns = table["class_index"][read], table["outlier_score"][read]
        return Evaluation.of(truth[read], *columns, model.class_names, int((~read).sum()))
    if isinstance(images, str | Path):
        images = load_test(Path(images), model.class_names, model.size[0], model.channels)
    if not isinstance(images, ImageTable):
        raise UserError(
            "Images without labels cannot be evaluated; give labels, or a folder with one subfolder per class."
        )
    predictions = model.predict_pixels(images.images)
    scores = predictions.outlier_score
    return Evaluation.of(images.labels, predictions.classes, scores, model.class_names, len(images.skipped))


def _class_indices(labels: Any, class_names: tuple[str, ...]) -> Labels:
    """Labels (n,), names or indices, as class indices."""
    values = np.asarray(labels)
    if values.ndim != 1 or values.dtype.kind not in "iuUO":
        raise UserError(f"Labels of type {values.dtype} and shape {values.shape} are none; give one class per image.")
    if values.dtype.kind in "iu":
        if len(values) and (values.min() < OOD or values.max() >= len(class_names) or (values == UNLABELLED).any()):
            raise UserError(f"Labels must be 0 to {len(class_names) - 1}, or {OOD} for out-of-distribution images.")
        return values.astype(np.int64)
    indices = {name: index for index, name in enumerate(class_names)}
    for name in values.tolist():
        if name not in indices:
            raise UserError(f"The model has no class {name!r}.{did_you_mean(str(name), list(class_names))}")
    return np.array([indices[name] for name in values.tolist()], dtype=np.int64)
