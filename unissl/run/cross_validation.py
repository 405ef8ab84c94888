"""Accuracy without test images: cross-validation over the labels.

Every refit trains from scratch on the labels that are left, with the same pool and the same number of steps. Images
whose labels are left out are in neither its labelled set nor its pool. The estimate is pessimistic, since each refit
has fewer labels than the shipped classifier, and it describes the class distribution of the given labels.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from unissl.distributed.collectives import broadcast_from_main
from unissl.errors import UserError
from unissl.evaluation.intervals import wilson_interval
from unissl.evaluation.metrics import score
from unissl.run.config import config_hash
from unissl.run.fit import fit
from unissl.run.folds import Positions, without_labels
from unissl.run.inputs import RunInputs
from unissl.run.readout import refit_head, shipped_parameters
from unissl.run.setup import build_training_on, predict_with_ema, restore_latest
from unissl.run_folder import RunFolder
from unissl.training.learner import Learner
from unissl.utils.atomic import read_json, write_json
from unissl.utils.progress import followed_by


def cross_validate(folder: RunFolder, inputs: RunInputs) -> dict[str, Any] | None:
    """Accuracy on left-out labels with a 95 % interval (Wilson); ``cross_validation.json`` has every prediction.

    A finished refit is a file in ``folds/`` and is not repeated; an interrupted one is resumed.
    """
    folds, split = inputs.folds, inputs.split
    if not folds:
        return None
    predicted = np.full(len(split.labelled), -1, dtype=np.int64)
    for number, held_out in enumerate(folds):
        predicted[held_out] = _refit(folder, inputs, held_out, number)
    tested = np.flatnonzero(predicted >= 0)
    truth, classes = split.labels[tested], predicted[tested]
    table = {"rows": split.labelled[tested].tolist(), "truth": truth.tolist(), "predicted": classes.tolist()}
    broadcast_from_main(lambda: write_json(folder.cross_validation, table))
    scores = score(truth, classes, split.num_classes)
    interval = wilson_interval(int((truth == classes).sum()), len(tested))
    return {
        "folds": inputs.config.train.cv_folds,
        "labels": len(tested),
        "accuracy": scores["accuracy"],
        "low": interval.low,
        "high": interval.high,
        "balanced_accuracy": scores["balanced_accuracy"],
        "steps": inputs.config.train.steps,
    }


def is_class(value: object, num_classes: int) -> bool:
    return type(value) is int and 0 <= value < num_classes


def _read_finished(path: Path, count: int, num_classes: int) -> list[int]:
    """Predicted classes of a finished refit."""
    classes = read_json(path)
    if not isinstance(classes, list) or len(classes) != count or not all(is_class(c, num_classes) for c in classes):
        raise UserError(f"{path} does not hold the predictions of a refit; delete it to repeat the refit.")
    return classes


def _refit(folder: RunFolder, inputs: RunInputs, held_out: Positions, number: int) -> Positions:
    """Classes that a training without the labels at ``held_out`` predicts for their images."""
    fold = broadcast_from_main(lambda: folder.inside("folds", str(number)))
    done = folder.folds / f"{number}.json"
    classes = inputs.split.num_classes
    stored = broadcast_from_main(lambda: _read_finished(done, len(held_out), classes) if done.exists() else None)
    if stored is not None:
        return np.array(stored, dtype=np.int64)
    broadcast_from_main(fold.create)
    config = inputs.config
    config = config.model_copy(update={"train": config.train.model_copy(update={"evaluations": 1})})
    split = without_labels(inputs.split, held_out)
    state, batches = build_training_on(config, inputs.train_views, split, inputs.device)
    restore_latest(fold, state, config_hash(config), config.machine.threads)
    title = f"{config.method.name}, cross-validation {number + 1} of {len(inputs.folds)}"
    with followed_by(len(inputs.folds) - number - 1):
        fit(config, state, batches, fold, _no_evaluation, title=title)
    rows = inputs.split.labelled[held_out]
    parameters = shipped_parameters(state, refit_head(config, state, batches, split))
    preds = predict_with_ema(state.learner, parameters, batches.views, batches, rows).classes
    broadcast_from_main(lambda: write_json(done, preds.tolist()))
    broadcast_from_main(lambda: shutil.rmtree(fold.path))
    return preds


def _no_evaluation(learner: Learner, shadow: Mapping[str, Tensor]) -> tuple[dict[str, Any], Positions]:
    """A refit evaluates nothing during training."""
    return {}, np.zeros(0, dtype=np.int64)
