"""One run, from a configuration to a run folder. Read :func:`run` first: its order is the order of the stages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from unissl.augment.feature_views import FeatureViews
from unissl.baselines import LinearClassifier
from unissl.batches import Batches, Views
from unissl.config import ConfigTree, to_toml
from unissl.data import Dataset
from unissl.data.folder.index import FolderIndex, require_out_elsewhere
from unissl.distil.student import distil_steps
from unissl.distributed.collectives import broadcast_from_main, local_main_process_first
from unissl.errors import UserError
from unissl.evaluation.diagnostics import pool_record
from unissl.evaluation.intervals import Interval
from unissl.evaluation.metrics import accuracy, outlier_auroc
from unissl.evaluation.predictions import Predictions
from unissl.evaluation.selective import SelectiveAccuracy
from unissl.inference.prediction_table import PredictionTable
from unissl.methods.base import Needs
from unissl.methods.registry import get_method
from unissl.run.budget import plan_budget, tune_threads
from unissl.run.config import RunConfig, baseline_config, config_hash, effective_tree, fit_to_data, stored_config
from unissl.run.cross_validation import cross_validate, write_held_out
from unissl.run.distillation import changed_share, predict_pool, predict_test, run_distillation
from unissl.run.fingerprint import save_fingerprint, verify_data
from unissl.run.fit import decide_compile, fit
from unissl.run.inputs import RunInputs, prepare_inputs
from unissl.run.lock import locked
from unissl.run.readout import Readout, refit_head, shipped_parameters
from unissl.run.results import RunResult, write_results
from unissl.run.schema import Summary, accuracy_interval, compared_accuracy, require, selective_accuracies
from unissl.run.setup import build_training, check_bf16, decide_bf16, predict_with_ema, restore_latest, setup_device
from unissl.run.shipping import choose_classifier, fit_baselines, predict_baseline
from unissl.run_folder import RunFolder
from unissl.splits import write_split
from unissl.splits.open_set import load_data
from unissl.training.checkpoint import TrainState
from unissl.training.learner import Learner
from unissl.training.oom import memory_errors
from unissl.types import OOD, Rows
from unissl.utils.allocator import keep_freed_memory, release_freed_memory
from unissl.utils.atomic import read_json, write_text
from unissl.utils.progress import followed_by, log


@dataclass(frozen=True)
class Run:
    """A finished run, with its labels-only baseline if it has one."""

    folder: RunFolder
    config: RunConfig
    summary: dict[str, Any]
    baseline: Run | None = None
    inputs: RunInputs | None = None
    """What the run read, so that a report need not load it again; None for a run that was finished before."""

    def __repr__(self) -> str:
        accuracy = "" if self.accuracy is None else f", accuracy={self.accuracy:.4f}"
        return f"Run({str(self.folder.path)!r}, method={self.config.method.name!r}{accuracy})"

    @property
    def accuracy(self) -> float | None:
        """Test accuracy; without test images an estimate from cross-validation; None where there is neither."""
        return None if self.interval is None else self.interval.value

    @property
    def interval(self) -> Interval | None:
        """The accuracy with its 95 % interval."""
        return accuracy_interval(self.summary)

    @property
    def selective_accuracy(self) -> list[SelectiveAccuracy]:
        """Accuracy and fraction of the images with a confidence of at least 0.5, 0.6, ... 0.99, so that a threshold can
        be chosen; empty where the accuracy is not known."""
        return selective_accuracies(self.summary)

    @property
    def report(self) -> Path | None:
        """The HTML report, if one was written."""
        return self.folder.report if self.folder.report.exists() else None

    @property
    def baselines(self) -> dict[str, float]:
        """Accuracy of each baseline by its name: on the test images; without any, on the folds of cross-validation,
        where the run itself has ``summary["cross_validation"]["accuracy"]``."""
        table = {name: float(scores["accuracy"]) for name, scores in self.summary.get("baselines", {}).items()}
        labels_only = None if self.baseline is None else compared_accuracy(self.baseline.summary)
        if self.baseline is not None and labels_only is not None:
            table = {self.baseline.config.method.name: labels_only} | table
        return table

    @property
    def predictions(self) -> PredictionTable | None:
        """Predictions for the unlabelled pool; None where there was no pool."""
        return PredictionTable.read(self.folder.predictions) if self.folder.predictions.exists() else None


@keep_freed_memory()
def run(
    config: RunConfig, out: Path | str | None = None, *, index: FolderIndex | None = None, started: float | None = None
) -> Run:
    """Train and evaluate; all results are in the folder ``out``, which must be empty or absent.

    Without ``out`` it is runs/DATA-METHOD-SEED. A budget in minutes counts from ``started``, by the monotonic clock, or
    from this call, to the end of the report.
    ``index`` is a scan of the image folder that was made before, so that it is not scanned twice.
    """
    started = time.monotonic() if started is None else started
    folder = RunFolder(out or Path("runs") / f"{config.data.name}-{config.method.name}-{config.seed}")
    broadcast_from_main(folder.check_unused)
    broadcast_from_main(lambda: require_out_elsewhere(folder.path, config.data))
    device = setup_device(config.machine)
    if config.train.precision == "bfloat16" and device.type == "cpu":
        raise UserError("Training in bfloat16 is for GPUs, and some CPUs crash in it; leave out train.precision.")
    dataset = local_main_process_first(lambda: load_data(config.data, config.split, index))
    config = decide_bf16(fit_to_data(config, dataset), device)
    with memory_errors(config.batch):
        inputs = prepare_inputs(config, dataset, device)
        state, batches = build_training(inputs)
        next(batches.scan_shares("labelled", "weak"))  # images too small for the crop are refused before any writing
        if config.machine.tune_threads:
            inputs = inputs.with_config(tune_threads(config, state, batches))
        inputs = inputs.with_config(plan_budget(inputs, state, batches, started, has_baseline(config)))
        inputs = inputs.with_config(decide_compile(inputs.config, state, batches))
    with locked(folder), memory_errors(config.batch):
        broadcast_from_main(lambda: initialise_folder(folder, inputs))
        summary = train_and_save(folder, inputs, state, batches)
        return Run(folder, inputs.config, summary, train_baseline(folder, inputs), inputs)


@keep_freed_memory()
def resume(out: Path | str, overrides: ConfigTree | None = None) -> Run:
    """Continue the run in ``out`` bit for bit. ``overrides`` are settings given again, which must not differ."""
    folder = RunFolder(out)
    config = broadcast_from_main(lambda: stored_config(folder, overrides or {}))
    finished = broadcast_from_main(lambda: finished_run(folder, config))
    if finished is not None:
        return finished
    with locked(folder), memory_errors(config.batch):
        device = setup_device(config.machine)
        dataset = local_main_process_first(lambda: load_data(config.data, config.split))
        check_bf16(config, device)
        inputs = prepare_inputs(config, dataset, device)
        broadcast_from_main(lambda: verify_data(folder, inputs.split, dataset))
        if broadcast_from_main(lambda: folder.finished):
            summary = broadcast_from_main(lambda: stored_summary(folder))
        else:
            state, batches = build_training(inputs)
            restore_latest(folder, state, config_hash(config), config.machine.threads)
            summary = train_and_save(folder, inputs, state, batches)
        return Run(folder, config, summary, train_baseline(folder, inputs), inputs)


def finished_run(folder: RunFolder, config: RunConfig) -> Run | None:
    """The run in ``folder`` if nothing of it is left to do."""
    if not folder.finished:
        return None
    if not has_baseline(config):
        return Run(folder, config, stored_summary(folder))
    if not folder.baseline.finished:
        return None
    baseline = Run(folder.baseline, baseline_config(config), stored_summary(folder.baseline))
    return Run(folder, config, stored_summary(folder), baseline)


def has_baseline(config: RunConfig) -> bool:
    """Whether a labels-only baseline is trained: it is configured, and the method learns from a pool without labels."""
    method = get_method(config.method.name)
    return config.output.baseline and config.method.name != "labels-only" and Needs.POOL_LABELS not in method.needs


def train_baseline(folder: RunFolder, inputs: RunInputs) -> Run | None:
    """Train the labels-only baseline on the same inputs, in the folder ``baseline``; an interrupted one is resumed."""
    if not has_baseline(inputs.config):
        return None
    inputs, target = inputs.with_config(baseline_config(inputs.config)), folder.baseline
    if broadcast_from_main(lambda: target.finished):
        return Run(target, inputs.config, broadcast_from_main(lambda: stored_summary(target)))
    state, batches = build_training(inputs)
    if broadcast_from_main(lambda: target.holds_run):
        restore_latest(target, state, config_hash(inputs.config), inputs.config.machine.threads)
    else:
        broadcast_from_main(lambda: write_config_and_split(target, inputs))
    return Run(target, inputs.config, train_and_save(target, inputs, state, batches, is_baseline=True))


def initialise_folder(folder: RunFolder, inputs: RunInputs) -> None:
    """Write everything that a restart needs before the first checkpoint."""
    folder.check_unused()  # another process may have started while this one decoded its images
    write_config_and_split(folder, inputs)
    save_fingerprint(folder, inputs.dataset)


def write_config_and_split(folder: RunFolder, inputs: RunInputs) -> None:
    """Write both files or neither."""
    folder.create()
    folder.remove_partial_files()
    try:
        write_text(folder.config, to_toml(effective_tree(inputs.config)))
        write_split(inputs.split, folder.split)
    except UserError:
        folder.config.unlink(missing_ok=True)
        folder.split.unlink(missing_ok=True)
        raise


def stored_summary(folder: RunFolder) -> dict[str, Any]:
    summary: dict[str, Any] = require(Summary, read_json(folder.summary), folder.summary)
    return summary


def train_and_save(
    folder: RunFolder, inputs: RunInputs, state: TrainState, batches: Batches, *, is_baseline: bool = False
) -> dict[str, Any]:
    """Train from ``state`` to the end of the budget, cross-validate, distil, and write the results; the summary."""
    config, split, dataset = inputs.config, inputs.split, inputs.dataset
    started = time.monotonic() - state.seconds

    def eval_fn(learner: Learner, shadow: Mapping[str, Tensor]) -> tuple[dict[str, Any], Rows]:
        metrics, predicted = evaluate(learner, shadow, inputs, batches)
        if config.train.diagnostics and len(split.unlabelled):
            rows = inputs.training_split.unlabelled
            truth = dataset.train.labels[rows]
            metrics["pool"] = pool_record(learner.predict, learner.method, batches, rows, truth, state.step)
        return metrics, predicted

    with followed_by(baseline_trainings(inputs)):
        with followed_by(len(inputs.folds)):
            fit(config, state, batches, folder, eval_fn, class_names=dataset.train.class_names)
        seconds = time.monotonic() - started
        cross_validation = cross_validate(folder, inputs)
    after_cross_validation = time.monotonic()
    baselines = None if is_baseline else fit_baselines(inputs)
    shipped = None
    if baselines is not None:
        predicted = None if cross_validation is None else cross_validation.predicted
        shipped = choose_classifier(config.method.name, predicted, split.labels, baselines)
    student = run_distillation(inputs, state, batches) if inputs.distils else None
    readout = None if student is not None else refit_head(config, state, batches, split)
    shadow = shipped_parameters(state, readout)
    pool: Predictions | None
    changed = None
    if student is not None:
        pool = predict_pool(inputs, student)
        changed = changed_share(inputs, student, pool)
        test = predict_test(inputs, student)
        log_student(folder, inputs, test, seconds + time.monotonic() - after_cross_validation)
    else:

        def predict(views: Views, rows: Rows | None = None) -> Predictions:
            return predict_with_ema(state.learner, shadow, views, batches, rows)

        pool = predict(inputs.pool_views, split.unlabelled) if len(split.unlabelled) else None
        test = None if inputs.test_views is None else predict(inputs.test_views)
    if baselines is not None and shipped is not None and shipped.baseline is not None:
        pool, test = predict_with_baseline(inputs, shipped.baseline)
        if cross_validation is not None:  # the estimate is of what is shipped
            cross_validation = write_held_out(folder, inputs, baselines.held_out[shipped.name], cross_validation)
    seconds += time.monotonic() - after_cross_validation
    readout_record = None if readout is None else record_readout(readout, inputs, state, batches)
    result = RunResult(
        state.learner,
        shadow,
        student,
        pool,
        test,
        cross_validation,
        seconds,
        readout_record,
        baselines,
        shipped,
        changed,
    )
    release_freed_memory()  # the search for duplicates needs some of its own
    return broadcast_from_main(lambda: write_results(folder, inputs, result, is_baseline=is_baseline))


def baseline_trainings(inputs: RunInputs) -> float:
    """What the labels-only baseline and its folds take, in trainings of the method, for the time left: their steps see
    fewer images. (The time of a distillation is not known in advance.)"""
    config = inputs.config
    baseline_step = config.batch.labelled / (config.batch.labelled + 2 * config.batch.unlabelled)
    return has_baseline(config) * (1 + len(inputs.folds)) * baseline_step


def predict_with_baseline(
    inputs: RunInputs, classifier: LinearClassifier
) -> tuple[Predictions | None, Predictions | None]:
    """Predictions of a simple baseline for the pool and the test images."""
    rows, train, tests = inputs.split.unlabelled, inputs.pool_views, inputs.test_views
    assert isinstance(train, FeatureViews)
    pool = predict_baseline(classifier, train, rows) if len(rows) else None
    assert tests is None or isinstance(tests, FeatureViews)
    return pool, None if tests is None else predict_baseline(classifier, tests, np.arange(len(tests)))


def log_student(folder: RunFolder, inputs: RunInputs, test: Predictions | None, seconds: float) -> None:
    """One more evaluation in the metrics, after the steps of the distillation."""
    config, dataset = inputs.config, inputs.dataset
    assert config.train.steps is not None
    metrics = {} if test is None else test_metrics(dataset, test)
    steps = distil_steps(config.distil, len(inputs.training_split.unlabelled)) if config.distil.fine_tune else 0
    step = config.train.steps + steps
    line = {"kind": "eval", "step": step, "student": True}
    folder.append_metrics({**line, **metrics, "seconds": round(seconds, 3)})
    reached = f", accuracy {metrics['accuracy']:.4f}" if metrics else ""
    log.info("%s: distillation finished%s", config.method.name, reached)


def record_readout(readout: Readout, inputs: RunInputs, state: TrainState, batches: Batches) -> dict[str, Any]:
    """What the summary states about the readout: the classifier that is shipped, the evidence, and the test accuracy of
    both, which decided nothing."""
    record: dict[str, Any] = readout.to_summary()
    if inputs.test_views is not None:
        for name, parameters in (("head", state.ema.shadow), ("consensus", readout.consensus)):
            preds = predict_with_ema(state.learner, parameters, inputs.test_views, batches)
            record[f"accuracy_{name}"] = test_metrics(inputs.dataset, preds)["accuracy"]
    return record


def evaluate(
    learner: Learner, shadow: Mapping[str, Tensor], inputs: RunInputs, batches: Batches
) -> tuple[dict[str, Any], Rows]:
    """Test accuracy, and the AUROC of the outlier score if some test images are out-of-distribution; without test
    images only the classes predicted for (a part of) the pool, or of the labelled images where there is no pool."""
    tests, dataset = inputs.test_views, inputs.dataset
    if tests is None or dataset.test is None:
        pool = inputs.training_split.unlabelled
        rows = (pool if len(pool) else inputs.split.labelled)[: 4 * batches.config.evaluation]
        return {}, predict_with_ema(learner, shadow, batches.views, batches, rows).classes
    preds = predict_with_ema(learner, shadow, tests, batches)
    return test_metrics(dataset, preds), preds.classes[dataset.test.labels != OOD]


def test_metrics(dataset: Dataset, preds: Predictions) -> dict[str, float]:
    """Accuracy on the in-distribution test images; AUROC of the outlier score where there are others."""
    assert dataset.test is not None
    truth, known = dataset.test.labels, dataset.test.labels != OOD
    metrics = {"accuracy": accuracy(truth[known], preds.classes[known])}
    if not known.all():
        metrics["auroc"] = outlier_auroc(truth, preds.outlier_score)
    return metrics
