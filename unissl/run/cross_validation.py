"""Accuracy without test images: cross-validation over the labels.

Every refit trains from scratch on the labels that are left, with the same pool and the same number of steps. Images
whose labels are left out are in neither its labelled set nor its pool. The estimate is pessimistic, since each refit
has fewer labels than the shipped classifier, and it describes the class distribution of the given labels.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from unissl.distributed.collectives import broadcast_from_main
from unissl.errors import UserError
from unissl.evaluation.intervals import wilson_interval
from unissl.evaluation.metrics import score
from unissl.evaluation.predictions import Predictions
from unissl.run.config import config_hash
from unissl.run.distillation import predict_without_fine_tuning
from unissl.run.fit import fit
from unissl.run.folds import Positions, without_labels
from unissl.run.inputs import RunInputs
from unissl.run.setup import build_training_on, predict_with_ema, restore_latest
from unissl.run_folder import RunFolder
from unissl.training.learner import Learner
from unissl.utils.atomic import read_json, write_json
from unissl.utils.progress import followed_by

Confidences = npt.NDArray[np.float64]
COLUMNS = ("predicted", "confidence")
"""What the file of a finished refit holds."""


@dataclass(frozen=True)
class CrossValidated:
    """What the summary has of a cross-validation, and the predicted class of each label (n,), -1 if never left out."""

    summary: dict[str, Any]
    predicted: Positions


def cross_validate(folder: RunFolder, inputs: RunInputs) -> CrossValidated | None:
    """Accuracy on left-out labels with a 95 % interval (Wilson); ``cross_validation.json`` has every prediction.

    A finished refit is a file in ``folds/`` and is not repeated; an interrupted one is resumed.
    """
    folds, split = inputs.folds, inputs.split
    if not folds:
        return None
    predicted, confidence = np.full(len(split.labelled), -1, dtype=np.int64), np.zeros(len(split.labelled))
    for number, held_out in enumerate(folds):
        predicted[held_out], confidence[held_out] = _refit(folder, inputs, held_out, number)
    return write_held_out(folder, inputs, predicted, confidence)


def write_held_out(
    folder: RunFolder, inputs: RunInputs, predicted: Positions, confidence: Confidences
) -> CrossValidated:
    """Write ``cross_validation.json`` from the predictions (n,) for the labels, -1 where one was never left out."""
    split = inputs.split
    tested = np.flatnonzero(predicted >= 0)
    truth, classes = split.labels[tested], predicted[tested]
    table = {"rows": split.labelled[tested].tolist(), "truth": truth.tolist(), "predicted": classes.tolist()}
    table["confidence"] = confidence[tested].tolist()
    broadcast_from_main(lambda: write_json(folder.cross_validation, table))
    scores = score(truth, classes, split.num_classes)
    interval = wilson_interval(int((truth == classes).sum()), len(tested))
    summary = {
        "folds": inputs.config.train.cv_folds,
        "labels": len(tested),
        "accuracy": scores["accuracy"],
        "low": interval.low,
        "high": interval.high,
        "balanced_accuracy": scores["balanced_accuracy"],
        "steps": inputs.config.train.steps,
    }
    return CrossValidated(summary, predicted)


def confidences(preds: Predictions) -> Confidences:
    """Largest probabilities (n,); rounding of a sum may exceed 1."""
    return preds.confidence.astype(np.float64).clip(max=1.0)


def is_class(value: object, num_classes: int) -> bool:
    return type(value) is int and 0 <= value < num_classes


def _read_finished(path: Path, count: int, num_classes: int) -> dict[str, list[Any]]:
    """Predicted classes and confidences of a finished refit."""
    stored = read_json(path)
    columns: list[Any] = [stored.get(name) for name in COLUMNS] if isinstance(stored, dict) else [None]
    if (
        not all(isinstance(column, list) and len(column) == count for column in columns)
        or not all(is_class(value, num_classes) for value in columns[0])
        or not all(type(value) is float and 0 <= value <= 1 for value in columns[1])
    ):
        raise UserError(f"{path} does not hold the predictions of a refit; delete it to repeat the refit.")
    return dict(stored)


def _refit(folder: RunFolder, inputs: RunInputs, held_out: Positions, number: int) -> tuple[Positions, Confidences]:
    """Classes that a training without the labels at ``held_out`` predicts for their images, with confidences."""
    fold = broadcast_from_main(lambda: folder.inside("folds", str(number)))
    done = folder.folds / f"{number}.json"
    classes = inputs.split.num_classes
    stored = broadcast_from_main(lambda: _read_finished(done, len(held_out), classes) if done.exists() else None)
    if stored is not None:
        return np.array(stored["predicted"], dtype=np.int64), np.array(stored["confidence"])
    broadcast_from_main(fold.create)
    config = inputs.config
    config = config.model_copy(update={"train": config.train.model_copy(update={"evaluations": 1})})
    split = without_labels(inputs.split, held_out, inputs.dataset.train.groups)
    state, batches = build_training_on(config, inputs.train_views, split, inputs.device)
    restore_latest(fold, state, config_hash(config), config.machine.threads)
    title = f"{config.method.name}, cross-validation {number + 1} of {len(inputs.folds)}"
    with followed_by(len(inputs.folds) - number - 1):
        fit(config, state, batches, fold, _no_evaluation, title=title)
    rows = inputs.split.labelled[held_out]
    if inputs.distils:
        preds = predict_without_fine_tuning(inputs, split, state, batches, rows)
    else:
        preds = predict_with_ema(state.learner, state.ema.shadow, batches.views, batches, rows)
    confidence = confidences(preds)
    columns = dict(zip(COLUMNS, (preds.classes.tolist(), confidence.tolist()), strict=True))
    broadcast_from_main(lambda: write_json(done, columns))
    broadcast_from_main(lambda: shutil.rmtree(fold.path))
    return preds.classes, confidence


def _no_evaluation(learner: Learner, shadow: Mapping[str, Tensor]) -> tuple[dict[str, Any], Positions]:
    """A refit evaluates nothing during training."""
    return {}, np.zeros(0, dtype=np.int64)
