"""From a configuration and its data to what can be trained: device, network, method, optimiser, batches."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from unissl.batches import Batches, Views, subsets
from unissl.distributed.batch_norm import with_global_batch_norm
from unissl.distributed.collectives import broadcast_from_main
from unissl.distributed.group import current
from unissl.distributed.rows import all_gather_rows, local_slice
from unissl.errors import UserError
from unissl.evaluation.predictions import Predictions, predict_rows
from unissl.features.backbone import extracts_in_bf16
from unissl.methods.base import attach_method
from unissl.methods.registry import get_method
from unissl.nets import channels_last
from unissl.nets.bf16 import CANNOT_FOLLOW, SWITCH
from unissl.run.config import MachineConfig, RunConfig
from unissl.run.inputs import RunInputs, build_network
from unissl.run_folder import RunFolder
from unissl.training import checkpoint
from unissl.training.checkpoint import TrainState
from unissl.training.ema import Ema
from unissl.training.learner import Learner
from unissl.training.optim import build_optimizer
from unissl.types import DataInfo, Rows, Split
from unissl.utils.cpu import cpu_count


def setup_device(machine: MachineConfig) -> torch.device:
    """The device, if it is there; also sets the number of threads."""
    world = current()
    if machine.threads is not None:
        torch.set_num_threads(machine.threads)
    elif world.size > 1:  # torchrun leaves one thread to each process, however many cores there are
        torch.set_num_threads(max(1, cpu_count() // world.local_size))
    try:
        device = torch.device(machine.device)
        if world.size > 1 and device.type == "cuda" and device.index is None:
            device = torch.device("cuda", world.local_rank)
            torch.cuda.set_device(device)
        torch.zeros(1, device=device).item()  # the device "meta" exists but holds no numbers
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UserError(f"There is no device {machine.device!r} here; use --device cpu.") from None
    if machine.compile != "off" and world.size > 1:
        raise UserError("Compiling the network is for a single process; leave out machine.compile.")
    return device


def decide_bf16(config: RunConfig, device: torch.device) -> RunConfig:
    """The configuration of a new run with ``machine.bf16`` decided: a trial of the CPU may turn out otherwise later."""
    if not config.net.freeze_backbone:
        return config
    wanted = False if os.environ.get(SWITCH) == "1" else config.machine.bf16
    bf16 = broadcast_from_main(lambda: extracts_in_bf16(config.net.name, device, wanted))
    return config.model_copy(update={"machine": config.machine.model_copy(update={"bf16": bf16})})


def check_bf16(config: RunConfig, device: torch.device) -> None:
    """A resumed run computes as it did before, or not at all."""
    if config.machine.bf16 and not extracts_in_bf16(config.net.name, device, config.machine.bf16):
        raise UserError(CANNOT_FOLLOW)


def build_training(inputs: RunInputs) -> tuple[TrainState, Batches]:
    """Network, method, EMA, optimiser and batches, all decided by the seed."""
    return build_training_on(inputs.config, inputs.train_views, inputs.training_split, inputs.device)


def build_training_on(
    config: RunConfig, views: Views, split: Split, device: torch.device
) -> tuple[TrainState, Batches]:
    """The same for any views, of images or of features."""
    method_class = get_method(config.method.name)
    streams = method_class.streams(config.method)
    if not len(split.unlabelled) and method_class.learns_from_pool(config.method):
        raise UserError(
            f"There is no unlabelled image for {config.method.name} to learn from; add some, simulate a pool with "
            "--pool-distribution uniform, or use --method labels-only."
        )
    torch.manual_seed(config.seed)
    net = build_network(config, views, split.num_classes)
    missing = [name for name in method_class.taps if name not in net.tap_dims]
    if missing:
        raise UserError(
            f"{config.method.name} reads the inner map {missing[0]!r}, which {config.net.name} does not have; "
            "use a wide residual network, for example --net wrn-10-1."
        )
    attach_method(net, method_class)
    with_global_batch_norm(net)
    tap_dims = {name: net.tap_dims[name] for name in method_class.taps}
    sizes = (split.num_classes, net.feat_dim, len(split.unlabelled))
    info = DataInfo(*sizes, split.labelled_counts, tap_dims, views.shape)
    learner = channels_last(Learner(net, method_class(config.method, info)).to(device))
    ema = Ema(learner, config.optim.ema_decay, tail=config.optim.tail_average > 0)
    state = TrainState(learner, ema, build_optimizer(learner, config.optim))
    return state, Batches(views, subsets(split), streams, config.batch, config.seed, device)


def restore_latest(folder: RunFolder, state: TrainState, config_hash: str, threads: int | None = None) -> None:
    """Continue from the newest intact checkpoint; a run that has none yet, or none left, starts over."""
    broadcast_from_main(folder.remove_partial_files)
    header = checkpoint.restore_newest(folder.checkpoints, state, config_hash)
    if header is None:
        broadcast_from_main(lambda: folder.cut_metrics(0))
        return
    broadcast_from_main(lambda: folder.cut_metrics(header["metrics_size"]))
    if threads is None and header["processes"] == current().size:  # threads decide the last bits
        torch.set_num_threads(header["threads"])


def predict_with_ema(
    learner: Learner, shadow: Mapping[str, Tensor], views: Views, batches: Batches, rows: Rows | None = None
) -> Predictions:
    """Predictions of the averaged parameters for rows of a table; each process predicts its share."""
    rows = np.arange(len(views)) if rows is None else rows
    local_rows = rows[local_slice(len(rows))]
    size = batches.config.evaluation
    preds = predict_rows(lambda x: learner.predict(x, shadow), views, rows=local_rows, batch_size=size)
    parts = [preds.probs] if preds.ood_scores is None else [preds.probs, preds.ood_scores]
    gathered = all_gather_rows([torch.from_numpy(part) for part in parts], [len(rows)] * len(parts))
    return Predictions(*(part.numpy() for part in gathered))


def learnt_features(state: TrainState, batches: Batches, rows: Rows) -> Tensor:
    """Features (n, d) of the averaged network for the clean views of some rows."""
    size, parts = batches.config.evaluation, []
    for start in range(0, len(rows), size):
        x = batches.views("none", rows[start : start + size])
        parts.append(state.learner.predict(x, state.ema.shadow).features.cpu())
    return torch.cat(parts)
