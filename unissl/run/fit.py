"""Train to the end of the budget: runs, refits of a cross-validation and estimators alike."""

from __future__ import annotations

from collections.abc import Sequence

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
    title: str = "",
    class_names: Sequence[str] = (),
) -> None:
    """Train from the step of ``state`` to the last; metrics and checkpoints are written to ``folder``.

    ``title`` is the name of the progress bar; warnings mention ``class_names``.
    """
    state.learner.compiled = _compiled_network(config, state, batches)
    Trainer(
        state=state,
        batches=batches,
        config=config.train,
        optim=config.optim,
        folder=folder,
        config_hash=config_hash(config),
        evaluate=eval_fn,
        title=title or config.method.name,
        class_names=class_names,
        prefetch=_prefetches(config.machine, batches.device),
    ).run()


def decide_compile(config: RunConfig, state: TrainState, batches: Batches) -> RunConfig:
    """The configuration of a new run with ``machine.compile = "auto"`` decided: timings may differ later."""
    if config.machine.compile != "auto":
        return config
    compiled = state.learner.compiled = _compiled_network(config, state, batches)
    mode = "off" if compiled is None or compiled.call is compiled.net else "on"
    return config.model_copy(update={"machine": config.machine.model_copy(update={"compile": mode})})


def _compiled_network(config: RunConfig, state: TrainState, batches: Batches) -> CompiledNet | None:
    """The network as training calls it, None for the plain one; compiling is tried on the images of a step."""
    if state.learner.compiled is not None:
        return state.learner.compiled
    bf16, mode = config.train.precision == "bfloat16", config.machine.compile
    if mode == "off" and not bf16:
        return None
    state.learner.train()
    images = torch.cat([view for stream in batches.at(0).values() for view in stream.views.values()])
    steps = (config.train.steps or 0) - state.step
    return compile_net(state.learner.net, mode, bf16, images, steps)


def _prefetches(machine: MachineConfig, device: torch.device) -> bool:
    """Whether batches are prepared ahead: as configured, by default if a core is free for it."""
    return has_spare_core(device) if machine.prefetch is None else machine.prefetch


def has_spare_core(device: torch.device) -> bool:
    """Whether background work takes no time from the step. If all cores are busy, a second thread costs a small step
    more than preparing the batch in the main thread."""
    return device.type != "cpu" or torch.get_num_threads() * current().local_size < cpu_count()
