"""One run, from a configuration to a run folder. The order of :func:`run` is the order of what happens."""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unissl.batches import Batches, Views, pools
from unissl.config import Tree, to_toml
from unissl.data import Dataset
from unissl.errors import UserError
from unissl.evaluate.metrics import accuracy, outlier_auroc
from unissl.evaluate.predict import Predictions, predict_rows
from unissl.material import front, network, refuse_what_vectors_lack, views_of_test, views_of_train
from unissl.methods.base import fit_network
from unissl.methods.registry import get_method
from unissl.nets import channels_last
from unissl.open_set import load_data
from unissl.record import RunFolder, read_json, write_text
from unissl.results import write_results
from unissl.run_config import MachineConfig, RunConfig, config_facts, fit_to_data, identity, stored_config
from unissl.splits import make_split, read_split, write_split
from unissl.train import checkpoint
from unissl.train.budget import seconds_per_call, steps_within
from unissl.train.checkpoint import TrainState
from unissl.train.ema import Ema
from unissl.train.fast_net import FastNet, fast_net
from unissl.train.learner import Learner
from unissl.train.optim import build_optimizer
from unissl.train.trainer import Trainer, step_at
from unissl.types import OUTSIDE, DataInfo, Split

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: RunFolder
    config: RunConfig
    summary: dict[str, Any]


def run(config: RunConfig, out: Path | str | None = None, *, quiet: bool = False) -> Run:
    """Train and evaluate; everything that comes out is in the folder ``out``, which must not hold anything yet.

    Without ``out`` it is runs/DATA-METHOD-SEED.
    """
    folder = RunFolder(out or Path("runs") / f"{config.data.name}-{config.method.name}-{config.seed}")
    folder.refuse_if_taken()
    device = find_device(config.machine)
    if config.train.precision == "bfloat16" and device.type == "cpu":
        raise UserError("Training in bfloat16 is for GPUs, and some CPUs crash in it; leave out train.precision.")
    dataset = load_data(config.data, config.split)
    config = fit_to_data(config, dataset)
    split = split_of(config, dataset)
    state, batches = assemble(config, dataset, split, device)
    next(batches.scan("labelled", "weak"))  # images too small for the crop are refused before anything is written
    if config.machine.tune_threads:
        config = settle_threads(config, state, batches)
    if config.train.steps is None:
        config = settle_steps(config, state, batches, dataset)
    begin(folder, config, split)
    return carry_out(config, folder, dataset, split, state, batches, quiet)


def split_of(config: RunConfig, dataset: Dataset) -> Split:
    """The split that a configuration makes of its data."""
    names = dataset.train.class_names
    hold_out = "heldout" in get_method(config.method.name).needs
    return make_split(dataset.train.labels, len(names), config.split, config.seed, names, hold_out=hold_out)


def begin(folder: RunFolder, config: RunConfig, split: Split) -> None:
    """Make the folder with its first two files, or leave nothing behind."""
    was_there = folder.path.exists()
    try:
        folder.create()
        write_text(folder.config, to_toml(config))
        write_split(split, folder.split)
    except UserError:
        if folder.path.is_dir():
            folder.config.unlink(missing_ok=True)
            folder.split.unlink(missing_ok=True)
            if not was_there:
                folder.path.rmdir()
        raise


def resume(out: Path | str, said: Tree | None = None, *, quiet: bool = False) -> Run:
    """Continue the run in ``out`` bit for bit. ``said`` are settings given again, which must not differ."""
    folder = RunFolder(out)
    config = stored_config(folder, said or {})
    if folder.finished:
        return Run(folder, config, read_json(folder.summary))
    device = find_device(config.machine)
    dataset = load_data(config.data, config.split)
    split = split_of(config, dataset)
    if not folder.split.exists():  # cut off between its first two files
        write_split(split, folder.split)
    elif not same_split(split, read_split(folder.split, len(dataset.train))):
        raise UserError(f"The data have changed since {folder.path} was started; start a new run with another --out.")
    state, batches = assemble(config, dataset, split, device)
    take_up(folder, state, identity(config), config.machine.threads)
    return carry_out(config, folder, dataset, split, state, batches, quiet)


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
    trainer = Trainer(
        state=state,
        batches=batches,
        config=config.train,
        optim=config.optim,
        folder=folder,
        config_hash=identity(config),
        evaluate=lambda learner, shadow: evaluate(learner, shadow, dataset, split, batches, tests),
        title=config.method.name,
        quiet=quiet,
        prefetch=a_core_is_free(batches.device) if config.machine.prefetch is None else config.machine.prefetch,
    )
    state.learner.fast = quick_network(config, state, batches, quiet)
    trainer.run()
    seconds = time.monotonic() - started

    def predict(views: Views, rows: Rows | None = None) -> Predictions:
        return averaged_predictions(state.learner, state.ema.shadow, views, batches, rows)

    pool = predict(batches.views, split.unlabelled) if len(split.unlabelled) else None
    test = None if tests is None else predict(tests)
    before = front(config, dataset, batches.views)
    summary = write_results(
        folder, state.learner, state.ema.shadow, dataset, split, config_facts(config), pool, test, seconds, before
    )
    return Run(folder, config, summary)


def same_split(one: Split, other: Split) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("labelled", "labels", "unlabelled", "heldout", "heldout_labels")
    )


def find_device(machine: MachineConfig) -> torch.device:
    """The device, if it is there; also sets the number of threads."""
    if machine.threads is not None:
        torch.set_num_threads(machine.threads)
    try:
        device = torch.device(machine.device)
        torch.zeros(1, device=device).item()  # the device "meta" exists but holds no numbers
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UserError(f"There is no device {machine.device!r} here; use --device cpu.") from None
    return device


def assemble(config: RunConfig, dataset: Dataset, split: Split, device: torch.device) -> tuple[TrainState, Batches]:
    """Network, method, EMA, optimiser and batches, all decided by the seed."""
    refuse_what_vectors_lack(config, get_method(config.method.name))
    return assemble_on(config, views_of_train(config, dataset, device), split, device)


def assemble_on(config: RunConfig, views: Views, split: Split, device: torch.device) -> tuple[TrainState, Batches]:
    """The same on views that are there already, of images or of vectors."""
    method_class = get_method(config.method.name)
    streams = method_class.streams(config.method)
    if not len(split.unlabelled) and any(stream.source == "unlabelled" for stream in streams.values()):
        raise UserError(
            f"There is no unlabelled image for {config.method.name} to learn from; add some, simulate a pool with "
            "--profile uniform, or use --method labels-only."
        )
    torch.manual_seed(config.seed)
    net = network(config, views, split.num_classes)
    missing = [name for name in method_class.taps if name not in net.tap_dims]
    if missing:
        raise UserError(
            f"{config.method.name} reads the inner map {missing[0]!r}, which {config.net.name} does not have; "
            "use a wide residual network, for example --net wrn-10-1."
        )
    fit_network(net, method_class)
    tap_dims = {name: net.tap_dims[name] for name in method_class.taps}
    sizes = (split.num_classes, net.feat_dim, len(split.unlabelled))
    info = DataInfo(*sizes, split.labelled_counts, tap_dims, views.shape)
    learner = channels_last(Learner(net, method_class(config.method, info)).to(device))
    state = TrainState(learner, Ema(learner, config.optim.ema), build_optimizer(learner, config.optim))
    return state, Batches(views, pools(split), streams, config.batch, config.seed, device)


def quick_network(config: RunConfig, state: TrainState, batches: Batches, quiet: bool) -> FastNet | None:
    """How the settings want the network called in training; compiling it is tried on the images of a step."""
    half, how = config.train.precision == "bfloat16", config.machine.compile
    if how == "off" and not half:
        return None
    state.learner.train()
    images = torch.cat([view for stream in batches.at(0).values() for view in stream.views.values()])
    steps = (config.train.steps or 0) - state.step

    def say(message: str) -> None:
        if not quiet:
            print(message, file=sys.stderr)

    return fast_net(state.learner.net, how, half, images, steps, say)


def a_core_is_free(device: torch.device) -> bool:
    """Whether work in the background would not take its time from the step. Where all cores are busy, a second thread
    costs a small step more than making the batch in the open."""
    return device.type != "cpu" or torch.get_num_threads() < (os.cpu_count() or 1)


class Rehearsal:
    """Training steps on a copy, to be timed and thrown away."""

    def __init__(self, config: RunConfig, state: TrainState, batches: Batches) -> None:
        self.batches = batches
        self.learner = copy.deepcopy(state.learner)
        self.optimizer = build_optimizer(self.learner, config.optim)
        self.ema = Ema(self.learner, config.optim.ema)

    def step(self, number: int) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self.learner.losses(self.batches.at(number), step_at(0, 1, 1)).total)
        self.optimizer.step()
        self.ema.update(self.learner)


def settle_threads(config: RunConfig, state: TrainState, batches: Batches) -> RunConfig:
    """Time a few discarded steps with all threads, half of them and so on, and keep the fastest number."""
    rehearsal, threads = Rehearsal(config, state, batches), torch.get_num_threads()
    seconds = {}
    while threads:
        torch.set_num_threads(threads)
        seconds[threads] = seconds_per_call(rehearsal.step)
        threads //= 2
    fastest = min(seconds, key=seconds.__getitem__)
    torch.set_num_threads(fastest)
    return config.model_copy(update={"machine": config.machine.model_copy(update={"threads": fastest})})


def settle_steps(config: RunConfig, state: TrainState, batches: Batches, dataset: Dataset) -> RunConfig:
    """Time a few discarded steps and one evaluation on a copy, and freeze the number of steps that fits."""
    minutes = config.train.minutes
    assert minutes is not None
    rng = torch.get_rng_state()
    rehearsal = Rehearsal(config, state, batches)
    learner, ema = rehearsal.learner, rehearsal.ema
    per_step = seconds_per_call(rehearsal.step)
    views, some = views_of_test(config, dataset, batches.views) or batches.views, 4 * config.batch.evaluation
    rows = np.arange(min(len(views), some))
    start = time.perf_counter()
    averaged_predictions(learner, ema.shadow, views, batches, rows)
    per_image = (time.perf_counter() - start) / len(rows)
    per_evaluation = some if dataset.test is None else len(dataset.test)
    pool = len(batches.pools["unlabelled"].rows)
    overhead = per_image * (per_evaluation * (config.train.epochs + 1) + pool)
    torch.set_rng_state(rng)
    steps = steps_within(minutes, per_step, overhead)
    return config.model_copy(update={"train": config.train.model_copy(update={"steps": steps})})


def take_up(folder: RunFolder, state: TrainState, config_hash: str, threads: int | None = None) -> None:
    """Continue from the newest checkpoint; a run that was cut off before its first one starts over."""
    folder.remove_drafts()
    found = checkpoint.list_checkpoints(folder.checkpoints)
    if not found:
        folder.cut_metrics(0)
        return
    header = checkpoint.restore(found[-1], state, config_hash)
    folder.cut_metrics(header["metrics_size"])
    if threads is None:  # the number of threads decides the last bits
        torch.set_num_threads(header["threads"])


def averaged_predictions(
    learner: Learner, shadow: Mapping[str, Tensor], views: Views, batches: Batches, rows: Rows | None = None
) -> Predictions:
    """What the averaged parameters say about rows of a table."""
    size = batches.config.evaluation
    return predict_rows(lambda x: learner.predict(x, shadow), views, rows=rows, batch_size=size)


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
    truth, known = dataset.test.labels, dataset.test.labels != OUTSIDE
    metrics = {"accuracy": accuracy(truth[known], made.classes[known])}
    if not known.all():
        metrics["auroc"] = outlier_auroc(truth, made.outlier)
    return metrics, made.classes[known]
