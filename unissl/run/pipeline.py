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

from unissl.batches import Batches, Views
from unissl.config import ConfigTree, to_toml
from unissl.data import Dataset
from unissl.distil.student import distil_steps
from unissl.distributed.collectives import broadcast_from_main, local_main_process_first
from unissl.distributed.group import fixed_shards
from unissl.errors import UserError
from unissl.evaluation.diagnostics import pool_record
from unissl.evaluation.metrics import accuracy, outlier_auroc
from unissl.evaluation.predictions import Predictions
from unissl.methods.registry import get_method
from unissl.run.budget import ReservedTime, plan_budget, tune_threads
from unissl.run.config import RunConfig, config_hash, config_summary, fit_to_data, stored_config
from unissl.run.cross_validation import count_refits, cross_validate
from unissl.run.distillation import (
    extra_crops,
    predict_pool,
    predict_test,
    run_distillation,
    should_distil,
)
from unissl.run.fingerprint import data_changed_error, save_fingerprint, verify_fingerprint
from unissl.run.fit import fit
from unissl.run.inputs import build_backbone, build_test_views
from unissl.run.lock import locked
from unissl.run.results import write_results
from unissl.run.schema import Summary, require
from unissl.run.setup import build_training, predict_with_ema, restore_latest, setup_device
from unissl.run_folder import RunFolder, read_json, write_text
from unissl.splits import make_split, read_split, write_split
from unissl.splits.open_set import load_data
from unissl.training.checkpoint import TrainState
from unissl.training.learner import Learner
from unissl.training.oom import explain_memory_errors
from unissl.types import OOD, Split

Rows = npt.NDArray[np.int64]
BASELINE = "labels-only"
"""Folder inside a run's for the run that it is compared with."""


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
    broadcast_from_main(folder.refuse_if_taken)
    with fixed_shards(config.machine.shards):
        device = setup_device(config.machine)
        if config.train.precision == "bfloat16" and device.type == "cpu":
            raise UserError("Training in bfloat16 is for GPUs, and some CPUs crash in it; leave out train.precision.")
        dataset = local_main_process_first(lambda: load_data(config.data, config.split))
        config = fit_to_data(config, dataset)
        split = build_split(config, dataset)
        with explain_memory_errors(config.batch):
            state, batches = build_training(config, dataset, split, device)
            next(batches.scan("labelled", "weak"))  # images too small for the crop are refused before any writing
            if should_distil(config, len(dataset.train), split):
                # Made now and kept in the cache: files may be gone, and minutes used up, when they are wanted.
                extra_crops(config, dataset, device)
            if config.machine.tune_threads:
                config = tune_threads(config, state, batches)
            folds = count_refits(config, split) if dataset.test is None else 0
            beside = ReservedTime(started, split if reference else None, folds)
            config = plan_budget(config, state, batches, dataset, split, beside, aim)
        with locked(folder), explain_memory_errors(config.batch):
            broadcast_from_main(lambda: initialise_folder(folder, config, split, dataset, reference))
            return train_and_save(config, folder, dataset, split, state, batches, quiet)


def build_split(config: RunConfig, dataset: Dataset) -> Split:
    """The split that a configuration makes of its data."""
    names = dataset.train.class_names
    hold_out = "heldout" in get_method(config.method.name).needs
    return make_split(dataset.train.labels, len(names), config.split, config.seed, names, hold_out=hold_out)


def initialise_folder(folder: RunFolder, config: RunConfig, split: Split, dataset: Dataset, reference: bool) -> None:
    """Everything that a restart has to find before the first checkpoint."""
    folder.refuse_if_taken()  # another process may have begun while this one read its images
    write_config_and_split(folder, config, split)
    save_fingerprint(folder, dataset)
    if reference:  # says that one is wanted, whatever happens until it begins
        RunFolder(folder.path / BASELINE).create()


def write_config_and_split(folder: RunFolder, config: RunConfig, split: Split) -> None:
    """Write the first two files, or leave neither behind."""
    folder.create()
    try:
        write_text(folder.config, to_toml(config))
        write_split(split, folder.split)
    except UserError:
        folder.config.unlink(missing_ok=True)
        folder.split.unlink(missing_ok=True)
        raise


def resume(out: Path | str, said: ConfigTree | None = None, *, quiet: bool = False) -> Run:
    """Continue the run in ``out`` bit for bit. ``said`` are settings given again, which must not differ."""
    folder = RunFolder(out)
    config = broadcast_from_main(lambda: stored_config(folder, said or {}))
    summary = broadcast_from_main(lambda: stored_summary(folder) if folder.finished else None)
    if summary is not None:
        return Run(folder, config, summary)
    with locked(folder), explain_memory_errors(config.batch), fixed_shards(config.machine.shards):
        device = setup_device(config.machine)
        dataset = local_main_process_first(lambda: load_data(config.data, config.split))
        split = build_split(config, dataset)
        broadcast_from_main(lambda: verify_data(folder, split, dataset))
        state, batches = build_training(config, dataset, split, device)
        restore_latest(folder, state, config_hash(config), config.machine.threads)
        return train_and_save(config, folder, dataset, split, state, batches, quiet)


def stored_summary(folder: RunFolder) -> dict[str, Any]:
    summary: dict[str, Any] = require(Summary, read_json(folder.summary), folder.summary)
    return summary


def verify_data(folder: RunFolder, split: Split, dataset: Dataset) -> None:
    """Refuse to go on with other rows, labels or images than a folder was started with."""
    if not folder.split.exists():  # cut off between its first two files
        write_split(split, folder.split)
    elif not same_split(split, read_split(folder.split, len(dataset.train))):
        raise data_changed_error(folder)
    verify_fingerprint(folder, dataset)


def train_and_save(
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
    tests = build_test_views(config, dataset, batches.views)

    def judge(learner: Learner, shadow: Mapping[str, Tensor]) -> tuple[dict[str, Any], Rows]:
        metrics, predicted = evaluate(learner, shadow, dataset, split, batches, tests)
        if config.train.diagnostics:
            rows, truth = split.unlabelled, dataset.train.labels[split.unlabelled]
            metrics["pool"] = pool_record(learner.predict, learner.method, batches, rows, truth, state.step)
        return metrics, predicted

    fit(config, state, batches, folder, judge, quiet=quiet)
    seconds = time.monotonic() - started
    estimate = None if tests is not None else cross_validate(config, folder, split, batches, quiet)

    def predict(views: Views, rows: Rows | None = None) -> Predictions:
        return predict_with_ema(state.learner, state.ema.shadow, views, batches, rows)

    behind = time.monotonic()
    if should_distil(config, len(dataset.train), split):
        student, maps = run_distillation(config, state, batches, dataset, split)
        pool: Predictions | None = predict_pool(student, maps, split.unlabelled, batches.device)
        test = None if dataset.test is None else predict_test(student, config, dataset, batches.device)
        log_student(folder, config, dataset, split, test, seconds + time.monotonic() - behind)
        if not quiet:
            found = "" if test is None else f", accuracy {test_metrics(dataset, test)['accuracy']:.4f}"
            print(f"{config.method.name}: last stages of the backbone trained further{found}", file=sys.stderr)
    else:
        student = None
        pool = predict(batches.views, split.unlabelled) if len(split.unlabelled) else None
        test = None if tests is None else predict(tests)
    seconds += time.monotonic() - behind
    before = build_backbone(config, dataset, batches.views)
    facts = config_summary(config) | ({} if estimate is None else {"cross_validation": estimate})
    averaged = state.ema.shadow
    summary = broadcast_from_main(
        lambda: write_results(
            folder, state.learner, averaged, dataset, split, facts, pool, test, seconds, before, student
        )
    )
    return Run(folder, config, summary)


def log_student(
    folder: RunFolder, config: RunConfig, dataset: Dataset, split: Split, test: Predictions | None, seconds: float
) -> None:
    """One more evaluation in the record, after the steps in which the last stages were trained."""
    assert config.train.steps is not None
    metrics = {} if test is None else test_metrics(dataset, test)
    step = config.train.steps + distil_steps(config.distil, len(split.unlabelled))
    place = {"kind": "eval", "step": step, "epoch": config.train.evaluations, "student": True}
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
        return {}, predict_with_ema(learner, shadow, batches.views, batches, rows).classes
    made = predict_with_ema(learner, shadow, tests, batches)
    return test_metrics(dataset, made), made.classes[dataset.test.labels != OOD]


def test_metrics(dataset: Dataset, made: Predictions) -> dict[str, float]:
    """Accuracy on the test images of known classes; AUROC of the outlier score where there are others."""
    assert dataset.test is not None
    truth, known = dataset.test.labels, dataset.test.labels != OOD
    metrics = {"accuracy": accuracy(truth[known], made.classes[known])}
    if not known.all():
        metrics["auroc"] = outlier_auroc(truth, made.outlier)
    return metrics
