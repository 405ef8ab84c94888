"""One run, from a configuration to a run folder. The order of :func:`run` is the order of what happens."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from unissl.assembly import assemble, averaged_predictions, find_device, take_up
from unissl.batches import Batches, Views
from unissl.config import Tree, to_toml
from unissl.content import changed_data, compare_content, note_content
from unissl.cross_validation import cross_validate, refits
from unissl.data import Dataset
from unissl.distil.student import steps_of
from unissl.distributed.agreement import from_first, one_per_machine_first
from unissl.distributed.group import fixed_shards
from unissl.errors import UserError
from unissl.evaluate.diagnostics import pool_record
from unissl.evaluate.metrics import accuracy, outlier_auroc
from unissl.evaluate.predict import Predictions
from unissl.finish_training import finish_training
from unissl.further_training import (
    answers_of_pool,
    answers_of_test,
    further_pictures,
    train_further,
    trains_further,
)
from unissl.material import front, views_of_test
from unissl.methods.registry import get_method
from unissl.open_set import load_data
from unissl.record import REFERENCE, RunFolder, read_json, write_text
from unissl.report.stored import Summary, require
from unissl.results import write_results
from unissl.run_config import RunConfig, config_facts, fit_to_data, identity, stored_config
from unissl.run_lock import sole_user
from unissl.settle import Beside, settle_budget, settle_threads
from unissl.splits import make_split, read_split, write_split
from unissl.train.checkpoint import TrainState
from unissl.train.learner import Learner
from unissl.train.memory import memory_errors
from unissl.types import OUTSIDE, Split

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: RunFolder
    config: RunConfig
    summary: dict[str, Any]


def run(
    config: RunConfig,
    out: Path | str | None = None,
    *,
    quiet: bool = False,
    reference: bool = False,
    aim: float | None = None,
) -> Run:
    """Train and evaluate; everything that comes out is in the folder ``out``, which must not hold anything yet.

    Without ``out`` it is runs/DATA-METHOD-SEED. A budget in minutes counts from the call of this function to the end of
    evaluation; with ``reference`` it leaves time for labels-only training and a report after it. Where the steps are
    given, the last stages of a frozen backbone see the pool fewer times if all would take longer than ``aim`` minutes.
    """
    started = time.monotonic()
    folder = RunFolder(out or Path("runs") / f"{config.data.name}-{config.method.name}-{config.seed}")
    from_first(folder.refuse_if_taken)
    with fixed_shards(config.machine.shards):
        device = find_device(config.machine)
        if config.train.precision == "bfloat16" and device.type == "cpu":
            raise UserError("Training in bfloat16 is for GPUs, and some CPUs crash in it; leave out train.precision.")
        dataset = one_per_machine_first(lambda: load_data(config.data, config.split))
        config = fit_to_data(config, dataset)
        split = split_of(config, dataset)
        with memory_errors(config.batch):
            state, batches = assemble(config, dataset, split, device)
            next(batches.scan("labelled", "weak"))  # images too small for the crop are refused before any writing
            if trains_further(config, len(dataset.train), split):
                # Made now and kept in the cache: files may be gone, and minutes used up, when they are wanted.
                further_pictures(config, dataset, device)
            if config.machine.tune_threads:
                config = settle_threads(config, state, batches)
            folds = refits(config, split) if dataset.test is None else 0
            beside = Beside(started, split if reference else None, folds)
            config = settle_budget(config, state, batches, dataset, split, beside, aim)
        with sole_user(folder), memory_errors(config.batch):
            from_first(lambda: take_place(folder, config, split, dataset, reference))
            return carry_out(config, folder, dataset, split, state, batches, quiet)


def split_of(config: RunConfig, dataset: Dataset) -> Split:
    """The split that a configuration makes of its data."""
    names = dataset.train.class_names
    hold_out = "heldout" in get_method(config.method.name).needs
    return make_split(dataset.train.labels, len(names), config.split, config.seed, names, hold_out=hold_out)


def take_place(folder: RunFolder, config: RunConfig, split: Split, dataset: Dataset, reference: bool) -> None:
    """Everything that a restart has to find before the first checkpoint."""
    folder.refuse_if_taken()  # another process may have begun while this one read its images
    begin(folder, config, split)
    note_content(folder, dataset)
    if reference:  # says that one is wanted, whatever happens until it begins
        folder.inside(REFERENCE).create()


def begin(folder: RunFolder, config: RunConfig, split: Split) -> None:
    """Write the first two files, or leave neither behind."""
    folder.create()
    try:
        write_text(folder.config, to_toml(config))
        write_split(split, folder.split)
    except UserError:
        folder.config.unlink(missing_ok=True)
        folder.split.unlink(missing_ok=True)
        raise


def resume(out: Path | str, said: Tree | None = None, *, quiet: bool = False) -> Run:
    """Continue the run in ``out`` bit for bit. ``said`` are settings given again, which must not differ."""
    folder = RunFolder(out)
    config = from_first(lambda: stored_config(folder, said or {}))
    summary = from_first(lambda: stored_summary(folder) if folder.finished else None)
    if summary is not None:
        return Run(folder, config, summary)
    with sole_user(folder), memory_errors(config.batch), fixed_shards(config.machine.shards):
        device = find_device(config.machine)
        dataset = one_per_machine_first(lambda: load_data(config.data, config.split))
        split = split_of(config, dataset)
        from_first(lambda: compare_data(folder, split, dataset))
        state, batches = assemble(config, dataset, split, device)
        take_up(folder, state, identity(config), config.machine.threads)
        return carry_out(config, folder, dataset, split, state, batches, quiet)


def stored_summary(folder: RunFolder) -> dict[str, Any]:
    summary: dict[str, Any] = require(Summary, read_json(folder.summary), folder.summary)
    return summary


def compare_data(folder: RunFolder, split: Split, dataset: Dataset) -> None:
    """Refuse to go on with other rows, labels or images than a folder was started with."""
    if not folder.split.exists():  # cut off between its first two files
        write_split(split, folder.split)
    elif not same_split(split, read_split(folder.split, len(dataset.train))):
        raise changed_data(folder)
    compare_content(folder, dataset)


def carry_out(
    config: RunConfig,
    folder: RunFolder,
    dataset: Dataset,
    split: Split,
    state: TrainState,
    batches: Batches,
    quiet: bool,
) -> Run:
    """Train from where ``state`` stands to the end of the budget, then write the results."""
    started = time.monotonic() - state.seconds
    tests = views_of_test(config, dataset, batches.views)

    def judge(learner: Learner, shadow: Mapping[str, Tensor]) -> tuple[dict[str, Any], Rows]:
        metrics, predicted = evaluate(learner, shadow, dataset, split, batches, tests)
        if config.train.diagnostics:
            rows, truth = split.unlabelled, dataset.train.labels[split.unlabelled]
            metrics["pool"] = pool_record(learner.predict, learner.method, batches, rows, truth, state.step)
        return metrics, predicted

    finish_training(config, state, batches, folder, judge, quiet=quiet)
    seconds = time.monotonic() - started
    estimate = None if tests is not None else cross_validate(config, folder, split, batches, quiet)

    def predict(views: Views, rows: Rows | None = None) -> Predictions:
        return averaged_predictions(state.learner, state.ema.shadow, views, batches, rows)

    behind = time.monotonic()
    if trains_further(config, len(dataset.train), split):
        student, maps = train_further(config, state, batches, dataset, split)
        pool: Predictions | None = answers_of_pool(student, maps, split.unlabelled, batches.device)
        test = None if dataset.test is None else answers_of_test(student, config, dataset, batches.device)
        record_student(folder, config, dataset, split, test, seconds + time.monotonic() - behind)
        if not quiet:
            found = "" if test is None else f", accuracy {scores_of(dataset, test)['accuracy']:.4f}"
            print(f"{config.method.name}: last stages of the backbone trained further{found}", file=sys.stderr)
    else:
        student = None
        pool = predict(batches.views, split.unlabelled) if len(split.unlabelled) else None
        test = None if tests is None else predict(tests)
    seconds += time.monotonic() - behind
    before = front(config, dataset, batches.views)
    facts = config_facts(config) | ({} if estimate is None else {"estimate": estimate})
    averaged = state.ema.shadow
    summary = from_first(
        lambda: write_results(
            folder, state.learner, averaged, dataset, split, facts, pool, test, seconds, before, student
        )
    )
    return Run(folder, config, summary)


def record_student(
    folder: RunFolder, config: RunConfig, dataset: Dataset, split: Split, test: Predictions | None, seconds: float
) -> None:
    """One more evaluation in the record, after the steps in which the last stages were trained."""
    assert config.train.steps is not None
    metrics = {} if test is None else scores_of(dataset, test)
    step = config.train.steps + steps_of(config.distil, len(split.unlabelled))
    place = {"kind": "eval", "step": step, "epoch": config.train.epochs, "student": True}
    folder.append_metrics({**place, **metrics, "seconds": round(seconds, 3)})


def same_split(one: Split, other: Split) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("labelled", "labels", "unlabelled", "heldout", "heldout_labels")
    )


def evaluate(
    learner: Learner,
    shadow: Mapping[str, Tensor],
    dataset: Dataset,
    split: Split,
    batches: Batches,
    tests: Views | None,
) -> tuple[dict[str, Any], Rows]:
    """Accuracy on the test images, and the AUROC of the outlier score if some are of none of the classes; without any
    test images, only the classes predicted for (a part of) the pool."""
    if tests is None or dataset.test is None:
        rows = split.unlabelled[: 4 * batches.config.evaluation]
        return {}, averaged_predictions(learner, shadow, batches.views, batches, rows).classes
    made = averaged_predictions(learner, shadow, tests, batches)
    return scores_of(dataset, made), made.classes[dataset.test.labels != OUTSIDE]


def scores_of(dataset: Dataset, made: Predictions) -> dict[str, float]:
    """Accuracy on the test images of known classes; AUROC of the outlier score where there are others."""
    assert dataset.test is not None
    truth, known = dataset.test.labels, dataset.test.labels != OUTSIDE
    metrics = {"accuracy": accuracy(truth[known], made.classes[known])}
    if not known.all():
        metrics["auroc"] = outlier_auroc(truth, made.outlier)
    return metrics
