"""Complete, atomic checkpoints without pickle.

One safetensors file holds every tensor (weights and buffers, EMA shadow, optimiser state, random-number state) and, in
its header, the rest as JSON with a digest of it all. The order of images and their views are functions of the step
number, so the position in the data is the step, and torch's generator is the only one with a state.

A file is written under another name, flushed and moved, and an older one is removed only afterwards, so the last good
one survives a crash at any moment. A file that a failing disk damages later is detected by its digest, and the one
before it is used instead. How often one is written is decided by ``Trainer.checkpoint_due``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unissl.distributed.collectives import broadcast_from_main
from unissl.distributed.group import current
from unissl.errors import UserError
from unissl.training.ema import Ema
from unissl.training.learner import Learner
from unissl.utils.atomic import explain_disk_errors, require_real_folder, write_tensors
from unissl.utils.bounded_io import parse_json, regular_path
from unissl.utils.progress import log

FORMAT = "unissl-checkpoint-1"
MAX_CHECKPOINTS = 2
MAX_THREADS = 4096
_NAME = re.compile(r"step-(\d+)\.safetensors")
_MOMENTUM = re.compile(r"optimizer\.([0-9]{1,9})\..+")


class DamagedCheckpoint(UserError):
    """A file that is not a checkpoint, or a damaged one."""


@dataclass
class TrainState:
    """Everything that changes during training. ``step`` counts finished steps, ``seconds`` their time."""

    learner: Learner
    ema: Ema
    optimizer: torch.optim.Optimizer
    step: int = 0
    seconds: float = 0.0


def save(folder: Path, state: TrainState, config_hash: str, metrics_size: int) -> Path:
    """Write the state; keep the newest ``MAX_CHECKPOINTS``."""
    tensors = _tensors(state)
    meta = {
        "format": FORMAT,
        "step": state.step,
        "config": config_hash,
        "metrics_size": metrics_size,
        "threads": torch.get_num_threads(),
        "processes": current().size,
        "seconds": state.seconds,
    }
    meta["digest"] = _digest(meta, tensors)
    with explain_disk_errors(folder):
        require_real_folder(folder.parent, folder.name).mkdir(exist_ok=True)
    path = folder / f"step-{state.step:08d}.safetensors"
    write_tensors(path, tensors, {"unissl": json.dumps(meta)})
    with explain_disk_errors(folder):
        for old in list_checkpoints(folder)[:-MAX_CHECKPOINTS]:
            old.unlink()
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """Paths of checkpoints, oldest first. Partial files of a killed process are not among them."""
    return sorted(path for path in folder.glob("step-*.safetensors") if _NAME.fullmatch(path.name))


def restore_newest(folder: Path, state: TrainState, config_hash: str) -> dict[str, Any] | None:
    """Load the newest intact checkpoint and return its header, None if there is none. Damaged ones are renamed to
    *.damaged with a warning and ignored from then on."""
    damaged = False
    for path in reversed(broadcast_from_main(lambda: list_checkpoints(folder))):
        try:
            header = restore(path, state, config_hash)
        except DamagedCheckpoint:
            damaged = True
            broadcast_from_main(partial(_rename_damaged, path))
            continue
        if damaged:
            log.warning("training continues from the checkpoint before, %s", path.name)
        return header
    if damaged:
        log.warning("no intact checkpoint is left; training starts from the beginning")
    return None


def _rename_damaged(path: Path) -> None:
    renamed = path.with_name(f"{path.name}.damaged")
    with explain_disk_errors(path):
        path.rename(renamed)
    log.warning("%s is not an intact checkpoint and was renamed to %s", path, renamed.name)


def restore(path: Path, state: TrainState, config_hash: str) -> dict[str, Any]:
    """Load a checkpoint into ``state`` and return its header; an error if it is damaged or of another run."""
    meta, tensors = broadcast_from_main(lambda: _read(path))
    if meta.get("config") != config_hash:
        raise UserError(f"{path} belongs to a run with another configuration; use the folder it came from.")
    _check_fits(path, state, meta, tensors)
    state.learner.load_state_dict(_group(tensors, "learner."), strict=True)
    for name, value in _group(tensors, "ema.").items():
        # Copied in place: the memory layout of the shadow decides which kernels evaluate it, hence the last bits.
        state.ema.shadow[name].copy_(value)
    _load_optimizer(state.optimizer, _group(tensors, "optimizer."))
    torch.set_rng_state(tensors["rng.torch"].to(torch.uint8))
    state.step, state.seconds = int(meta["step"]), float(meta["seconds"])
    return meta


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    damaged = DamagedCheckpoint(f"{path} is not an intact checkpoint; delete it to continue from the one before.")
    try:
        with regular_path(path) as opened, safe_open(opened, framework="pt") as handle:
            meta = parse_json((handle.metadata() or {}).get("unissl", "{}"))
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RecursionError):
        raise damaged from None
    digest = meta.pop("digest", None) if isinstance(meta, dict) else None
    if digest is None or meta.get("format") != FORMAT or digest != _digest(meta, tensors):
        raise damaged
    return meta, tensors


def _check_fits(path: Path, state: TrainState, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Compare names, shapes and ranges with those of this run: an intact digest does not tell who wrote a file."""
    expected = _tensors(state)
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    counts = [meta.get(name) for name in ("step", "metrics_size", "processes", "threads")]
    fits = all(type(count) is int and 0 <= count < 2**53 for count in counts) and counts[3] in range(1, MAX_THREADS)
    fits = fits and isinstance(meta.get("seconds"), int | float) and 0 <= meta["seconds"] < 2**53
    fits = fits and {name for name in expected if not name.startswith("optimizer.")} <= set(tensors)
    for name, value in tensors.items():
        if match := _MOMENTUM.fullmatch(name):
            fits = fits and int(match[1]) < len(parameters) and value.shape in ((), parameters[int(match[1])].shape)
        else:
            like = expected.get(name)
            fits = fits and like is not None and (value.shape, value.dtype) == (like.shape, like.dtype)
    if not fits:
        raise UserError(f"{path} does not hold the state of this run; delete it to continue from the one before.")


def _tensors(state: TrainState) -> dict[str, Tensor]:
    tensors = {f"learner.{name}": value for name, value in state.learner.state_dict().items()}
    tensors |= {f"ema.{name}": value for name, value in state.ema.shadow.items()}
    for index, entry in state.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in entry.items() if isinstance(value, Tensor)}
    tensors["rng.torch"] = torch.get_rng_state()
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    entries: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        like = parameters[int(index)]
        in_layout = torch.empty_like(like).copy_(value) if value.shape == like.shape else value
        entries.setdefault(int(index), {})[key] = in_layout.detach()
    # Groups (rates, decays) come from the configuration; only the state of the parameters is restored.
    optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})


def _group(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _digest(meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name}:{tensors[name].dtype}:{tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
