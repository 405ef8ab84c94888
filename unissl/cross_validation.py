"""How good is a classifier without test images? Labels are left out by turns, and refits say what they are.

Every refit is a training of its own on the labels that are left, from other views of the same pool and of the same
length. Images whose labels are left out are in neither its labelled set nor its pool. The estimate is pessimistic,
since each refit has fewer labels than the classifier it speaks for, and it is about the mix of the given labels.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest
from torch import Tensor

from unissl.assembly import assemble_on, averaged_predictions, take_up
from unissl.batches import Batches
from unissl.distributed.agreement import from_first
from unissl.errors import UserError
from unissl.evaluate.metrics import score
from unissl.finish_training import finish_training
from unissl.record import FOLDS, RunFolder, read_json, write_json
from unissl.run_config import RunConfig, identity
from unissl.train.learner import Learner
from unissl.types import Split

Positions = npt.NDArray[np.int64]
FILE = "estimate.json"


def folds_of(labels: npt.NDArray[np.int64], folds: int, seed: int) -> list[Positions]:
    """Positions of the labels that each refit leaves out: every label once, dealt out class by class.

    A class with a single label keeps it in all refits, since nothing could be learnt of it without. Folds that come out
    empty are left out.
    """
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, folds])))
    hands: list[list[int]] = [[] for _ in range(folds)]
    for number, label in enumerate(np.unique(labels)):
        mine = generator.permutation(np.flatnonzero(labels == label))
        if len(mine) > 1:
            for turn, position in enumerate(mine):
                hands[(number + turn) % folds].append(int(position))
    return [np.sort(np.array(hand, dtype=np.int64)) for hand in hands if hand]


def without(split: Split, held: Positions) -> Split:
    """The split with some of its labelled images gone."""
    kept = np.setdiff1d(np.arange(len(split.labelled)), held)
    return replace(split, labelled=split.labelled[kept], labels=split.labels[kept])


def refits(config: RunConfig, split: Split) -> int:
    """How many trainings an estimate takes; none where labels are too few to leave any out."""
    if config.train.folds < 2:
        return 0
    return len(folds_of(split.labels, config.train.folds, config.seed))


def cross_validate(
    config: RunConfig, folder: RunFolder, split: Split, batches: Batches, quiet: bool
) -> dict[str, Any] | None:
    """Accuracy on labels that were left out, with a 95 % interval (Wilson); what was said of each is in ``FILE``.

    A refit that is done is in the folder ``folds`` and not repeated; one that was cut off goes on.
    """
    if not refits(config, split):
        return None
    predicted = np.full(len(split.labelled), -1, dtype=np.int64)
    for number, held in enumerate(folds_of(split.labels, config.train.folds, config.seed)):
        predicted[held] = _refit(config, folder, split, held, number, batches, quiet)
    tried = np.flatnonzero(predicted >= 0)
    truth, said = split.labels[tried], predicted[tried]
    answers = {"rows": split.labelled[tried].tolist(), "truth": truth.tolist(), "predicted": said.tolist()}
    from_first(lambda: write_json(folder.path / FILE, answers))
    scores = score(truth, said, split.num_classes)
    interval = binomtest(int((truth == said).sum()), len(tried)).proportion_ci(method="wilson")
    return {
        "folds": config.train.folds,
        "labels": len(tried),
        "accuracy": scores["accuracy"],
        "low": float(interval.low),
        "high": float(interval.high),
        "balanced_accuracy": scores["balanced_accuracy"],
        "steps": config.train.steps,
    }


def is_class(value: object, num_classes: int) -> bool:
    return type(value) is int and 0 <= value < num_classes


def _stored(done: Path, count: int, num_classes: int) -> list[int]:
    """Classes that a finished refit has left."""
    said = read_json(done)
    if not isinstance(said, list) or len(said) != count or not all(is_class(c, num_classes) for c in said):
        raise UserError(f"{done} is not what a refit leaves; delete it to repeat the refit.")
    return said


def _refit(
    config: RunConfig, folder: RunFolder, split: Split, held: Positions, number: int, batches: Batches, quiet: bool
) -> Positions:
    """The classes that a training without the labels at ``held`` gives to their images."""
    place = from_first(lambda: folder.inside(FOLDS, str(number)))
    done = folder.path / FOLDS / f"{number}.json"
    before = from_first(lambda: _stored(done, len(held), split.num_classes) if done.exists() else None)
    if before is not None:
        return np.array(before, dtype=np.int64)
    from_first(place.create)
    config = config.model_copy(update={"train": config.train.model_copy(update={"epochs": 1})})
    state, own = assemble_on(config, batches.views, without(split, held), batches.device)
    take_up(place, state, identity(config), config.machine.threads)
    title = f"{config.method.name}, cross-validation {number + 1}"
    finish_training(config, state, own, place, _nothing, quiet=quiet, title=title)
    said = averaged_predictions(state.learner, state.ema.shadow, own.views, own, split.labelled[held]).classes
    from_first(lambda: write_json(done, said.tolist()))
    from_first(lambda: shutil.rmtree(place.path))
    return said


def _nothing(learner: Learner, shadow: Mapping[str, Tensor]) -> tuple[dict[str, Any], Positions]:
    """There is nothing to evaluate on the way."""
    return {}, np.zeros(0, dtype=np.int64)
