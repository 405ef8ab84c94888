"""Runs of a fraction of a second, and a program that runs them until it is killed.

python tests/unit/paper/tiny_grid.py ROOT
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from unissl.config import ConfigTree, merge, to_tree
from unissl.run.config import build_config, config_hash
from unissl_paper.engines.local import LocalEngine
from unissl_paper.grid.scales import resolve
from unissl_paper.grid.worker import Task

TINY: ConfigTree = {
    "data": {"name": "digits", "image_size": 8, "test_holdout": 500},
    "split": {"max_count": 50, "gamma": 5.0},
    "net": {"name": "small"},
    "augment": {"flip": False, "pad": 1},
    "batch": {"labelled": 4, "unlabelled": 8},
    "train": {"steps": 4, "evaluations": 2},
    "method": {"name": "fixmatch"},
}
LONGER: ConfigTree = {"train": {"steps": 200, "evaluations": 4, "checkpoint_every": 20}}
"""Long enough to be killed between its first checkpoint and its end."""


def nothing() -> None:
    """No set-up of the process."""


def crash_once(flag: Path) -> None:
    """Be killed, the first time."""
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def name_blocked_signals() -> None:
    """Fail with the signals that were blocked before the process did anything."""
    raise ValueError(f"blocked: {sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))}")


def disk_full() -> None:
    raise OSError(28, "No space left on device")


def tiny_task(root: Path | str, seed: int = 0, scratch: Path | str = "unused", **groups: Any) -> Task:
    config = resolve(build_config(merge(TINY, {"seed": seed}, groups)))
    key = config_hash(config)
    origin = {"experiment": "tiny", "variant": "fixmatch", "column": "digits", "seed": seed, "scale": "mini"}
    machine = {"threads": 1, "device": "cpu", "prefetch": False}
    name = f"digits-{config.method.name}-{seed}-{key}"
    return Task(name, key, "mini", merge(to_tree(config), {"machine": machine}), str(root), str(scratch), None, origin)


if __name__ == "__main__":
    tasks = [tiny_task(sys.argv[1], seed, **LONGER) for seed in range(2)]
    for report in LocalEngine(1, nothing).run(tasks):
        print(report.task.name, report.state, report.reason or "", flush=True)
