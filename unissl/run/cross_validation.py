"""Accuracy without test images: cross-validation over the labels.

Every refit trains from scratch on the labels that are left, with the same pool and the same number of steps. Images
whose labels are left out are in neither its labelled set nor its pool. A refit has fewer labels than the shipped
classifier, and no fine-tuning, which would take as long as everything else together. :func:`estimate_shipped` corrects
the accuracy on the folds for both. The estimate describes the class distribution of the given labels.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unissl.distributed.collectives import broadcast_from_main
from unissl.errors import UserError
from unissl.evaluation.intervals import Interval, wilson_interval
from unissl.evaluation.metrics import score
from unissl.evaluation.predictions import Predictions
from unissl.run.config import config_hash
from unissl.run.distillation import predict_without_fine_tuning
from unissl.run.fit import fit
from unissl.run.folds import Positions, without_labels
from unissl.run.inputs import RunInputs
from unissl.run.readout import refit_head, shipped_parameters
from unissl.run.schema import CrossValidation, require
from unissl.run.setup import build_training_on, predict_with_ema, restore_latest
from unissl.run_folder import RunFolder
from unissl.utils.atomic import explain_disk_errors, read_json, require_real_folder, write_json
from unissl.utils.progress import followed_by

Confidences = npt.NDArray[np.float64]
LABEL_EXPONENT = 0.3
"""The error rate is proportional to this power of 1 / labels (docs/experiments.md)."""
FINE_TUNED_ERRORS = 0.89
"""Error rate after fine-tuning, relative to that of the linear classifier before it (docs/experiments.md)."""
FOLD_VARIANCE = 1.5
"""Variance of the accuracy on the folds, relative to that of as many independent trials: the refits share labels, so
one unlucky draw of labels is seen by all of them (docs/experiments.md)."""
FACTOR_SPREAD = 0.2
"""Half of the 95 % prediction interval of the two factors above together, on a collection that they were not measured
on, relative to their value (docs/experiments.md)."""
COLUMNS = ("predicted", "confidence")
"""What the file of a finished refit holds."""


@dataclass(frozen=True)
class CrossValidated:
    """Predicted class and confidence of each label (n,), class -1 if it was never left out."""

    predicted: Positions
    confidence: Confidences
    summary: dict[str, Any] = field(default_factory=dict)
    """Scores, as in summary.json."""

    def columns(self, tested: Positions) -> dict[str, Any]:
        """Classes and confidences of some labels, as they are stored."""
        values = (self.predicted[tested].tolist(), self.confidence[tested].tolist())
        return dict(zip(COLUMNS, values, strict=True))


def cross_validate(folder: RunFolder, inputs: RunInputs) -> CrossValidated | None:
    """Accuracy on left-out labels with a 95 % interval; ``cross_validation.json`` has every prediction.

    Until that file is written, a finished refit is a file in ``folds/`` and is not repeated; an interrupted one is
    resumed.
    """
    folds = inputs.folds
    if not folds:
        return None
    tested = np.sort(np.concatenate(folds))
    expected = _rows_and_truth(inputs, tested)
    stored = broadcast_from_main(lambda: _read_finished(folder.cross_validation, expected, inputs.split.num_classes))
    labels = len(inputs.split.labelled)
    predicted, confidence = np.full(labels, -1, dtype=np.int64), np.zeros(labels)
    if stored is None:
        for number, held_out in enumerate(folds):
            predicted[held_out], confidence[held_out] = _refit(folder, inputs, held_out, number)
    else:
        predicted[tested], confidence[tested] = stored["predicted"], stored["confidence"]
    result = write_held_out(folder, inputs, CrossValidated(predicted, confidence))
    broadcast_from_main(lambda: _remove(require_real_folder(folder.path, "folds")))
    return result


def write_held_out(
    folder: RunFolder, inputs: RunInputs, shipped: CrossValidated, method: CrossValidated | None = None
) -> CrossValidated:
    """Write ``cross_validation.json`` and add the scores; where another classifier than the ``method`` is shipped,
    those of both, so that a restart need not repeat the refits."""
    tested = np.flatnonzero(shipped.predicted >= 0)
    table: dict[str, Any] = _rows_and_truth(inputs, tested) | shipped.columns(tested)
    if method is not None:
        table["method"] = method.columns(tested)
    broadcast_from_main(lambda: write_json(folder.cross_validation, table))
    truth, classes = inputs.split.labels[tested], shipped.predicted[tested]
    scores = score(truth, classes, inputs.split.num_classes)
    fine_tuned = inputs.distils and inputs.config.distil.fine_tune and method is None
    interval = fold_interval(scores["accuracy"], len(tested))
    summary = {
        "folds": inputs.config.train.cv_folds,
        "labels": len(tested),
        "accuracy": scores["accuracy"],
        "low": interval.low,
        "high": interval.high,
        "balanced_accuracy": scores["balanced_accuracy"],
        "steps": inputs.config.train.steps,
        "shipped": estimate_shipped(scores["accuracy"], len(tested), len(inputs.folds), fine_tuned),
    }
    return replace(shipped, summary=summary)


def fold_interval(accuracy: float, labels: int) -> Interval:
    """The accuracy on the folds with Wilson's interval for as many independent trials as the labels are worth."""
    trials = labels / FOLD_VARIANCE
    return wilson_interval(accuracy * trials, trials)


def estimate_shipped(accuracy: float, labels: int, folds: int, fine_tuned: bool) -> dict[str, float]:
    """Accuracy of the shipped classifier from that on the folds: the error rate falls with the number of labels and by
    fine-tuning. The interval is moved, and widened by what is not known about both."""
    on_folds = fold_interval(accuracy, labels)
    factor = (1 - 1 / folds) ** LABEL_EXPONENT * (FINE_TUNED_ERRORS if fine_tuned else 1.0)
    value = 1 - factor * (1 - accuracy)
    spread = FACTOR_SPREAD * (1 - value)
    low = value - math.hypot(accuracy - on_folds.low, spread)
    high = value + math.hypot(on_folds.high - accuracy, spread)
    return {"accuracy": value, "low": max(0.0, low), "high": min(1.0, high)}


def _rows_and_truth(inputs: RunInputs, tested: Positions) -> dict[str, Any]:
    return {"rows": inputs.split.labelled[tested].tolist(), "truth": inputs.split.labels[tested].tolist()}


def confidences(preds: Predictions) -> Confidences:
    """Largest probabilities (n,); rounding of a sum may exceed 1."""
    return preds.confidence.astype(np.float64).clip(max=1.0)


def _read_finished(path: Path, expected: Mapping[str, list[int]], num_classes: int) -> dict[str, list[Any]] | None:
    """The method's predictions of a finished cross-validation; None where there is none yet."""
    if not path.exists():
        return None
    table = require(CrossValidation, read_json(path), path)
    columns: dict[str, list[Any]] = table.get("method", table)
    if any(table[name] != values for name, values in expected.items()) or not _are_predictions(
        columns, len(expected["rows"]), num_classes
    ):
        raise UserError(f"{path} is not about the labels of this run; delete it to repeat the cross-validation.")
    return columns


def _are_predictions(columns: object, count: int, num_classes: int) -> bool:
    """Whether ``columns`` holds classes and confidences of so many images."""
    if not isinstance(columns, dict):
        return False
    values = [columns.get(name) for name in COLUMNS]
    return (
        all(isinstance(column, list) and len(column) == count for column in values)
        and all(type(value) is int and 0 <= value < num_classes for value in columns["predicted"])
        and all(type(value) is float and 0 <= value <= 1 for value in columns["confidence"])
    )


def _read_finished_refit(path: Path, count: int, num_classes: int) -> dict[str, list[Any]] | None:
    """Predicted classes and confidences of a finished refit; None where it is not finished."""
    if not path.exists():
        return None
    stored = read_json(path)
    if not _are_predictions(stored, count, num_classes):
        raise UserError(f"{path} does not hold the predictions of a refit; delete it to repeat the refit.")
    return dict(stored)


def _refit(folder: RunFolder, inputs: RunInputs, held_out: Positions, number: int) -> tuple[Positions, Confidences]:
    """Classes that a training without the labels at ``held_out`` predicts for their images, with confidences."""
    fold = broadcast_from_main(lambda: folder.inside("folds", str(number)))
    done = folder.folds / f"{number}.json"
    stored = broadcast_from_main(lambda: _read_finished_refit(done, len(held_out), inputs.split.num_classes))
    if stored is not None:
        return np.array(stored["predicted"], dtype=np.int64), np.array(stored["confidence"])
    broadcast_from_main(fold.create)
    config = inputs.config
    config = config.model_copy(update={"train": config.train.model_copy(update={"evaluations": 1})})
    split = without_labels(inputs.training_split, held_out, inputs.dataset.train.groups)
    state, batches = build_training_on(config, inputs.train_views, split, inputs.device)
    restore_latest(fold, state, config_hash(config), config.machine.threads)
    title = f"{config.method.name}, cross-validation {number + 1} of {len(inputs.folds)}"
    with followed_by(len(inputs.folds) - number - 1):
        # A refit evaluates nothing during training.
        fit(config, state, batches, fold, lambda *_: ({}, np.zeros(0, dtype=np.int64)), title=title)
    rows = inputs.split.labelled[held_out]
    if inputs.distils:
        preds = predict_without_fine_tuning(inputs, split, state, batches, rows)
    else:
        parameters = shipped_parameters(state, refit_head(config, state, batches, split))
        preds = predict_with_ema(state.learner, parameters, batches.views, batches, rows)
    confidence = confidences(preds)
    columns = dict(zip(COLUMNS, (preds.classes.tolist(), confidence.tolist()), strict=True))
    broadcast_from_main(lambda: write_json(done, columns))
    broadcast_from_main(lambda: _remove(fold.path))
    return preds.classes, confidence


def _remove(path: Path) -> None:
    with explain_disk_errors(path):
        if path.exists():
            shutil.rmtree(path)
