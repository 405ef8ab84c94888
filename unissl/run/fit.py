"""Train what was assembled to the end of its budget: whole runs, refits of a cross-validation and estimators alike."""

from __future__ import annotations

import sys

import torch

from unissl.batches import Batches
from unissl.distributed.group import current
from unissl.run.config import MachineConfig, RunConfig, config_hash
from unissl.run_folder import RunFolder
from unissl.training.checkpoint import TrainState
from unissl.training.compile import CompiledNet, compile_net
from unissl.training.trainer import EvalFn, Trainer
from unissl.utils.cpu import cpu_count


def fit(
    config: RunConfig,
    state: TrainState,
    batches: Batches,
    folder: RunFolder,
    eval_fn: EvalFn,
    *,
    quiet: bool,
    title: str = "",
) -> None:
    """From where ``state`` stands; the record and checkpoints go to ``folder``."""
    state.learner.fast = _compiled_network(config, state, batches, quiet)
    Trainer(
        state=state,
        batches=batches,
        config=config.train,
        optim=config.optim,
        folder=folder,
        config_hash=config_hash(config),
        evaluate=eval_fn,
        title=title or config.method.name,
        quiet=quiet,
        prefetch=_prefetches(config.machine, batches.device),
    ).run()


def _compiled_network(config: RunConfig, state: TrainState, batches: Batches, quiet: bool) -> CompiledNet | None:
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

    return compile_net(state.learner.net, how, half, images, steps, say)


def _prefetches(machine: MachineConfig, device: torch.device) -> bool:
    """Whether batches are made ahead: as the settings say, or by default where a core is free for it."""
    return has_spare_core(device) if machine.prefetch is None else machine.prefetch


def has_spare_core(device: torch.device) -> bool:
    """Whether work in the background would not take its time from the step. Where all cores are busy, a second thread
    costs a small step more than making the batch in the open."""
    return device.type != "cpu" or torch.get_num_threads() * current().local_size < cpu_count()
