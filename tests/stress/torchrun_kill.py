"""Kill processes of a torchrun group at random moments and compare the end with a group that was left alone.

    python tests/stress/torchrun_kill.py --kills 10

Twice: torchrun starts the group of two again after each kill, until it is through; and the whole group is killed, after
which a single process goes on. Training is in double precision, since a single process adds numbers in another order
than two, and in single precision training soon turns a last bit into a percent.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file

TOLERANCE = 1e-5
TRAIN = ["--data", "digits", "--method", "sage", "--net", "small", "--steps", "100", "--threads", "1", "--no-baseline"]
SETTINGS = [
    "train.evaluations=5",
    "train.log_every=1",
    "train.checkpoint_every=4",
    "batch.labelled=8",
    "batch.unlabelled=18",
]


@dataclass
class Outcome:
    kills: int = 0
    kills_in_start: int = 0
    """Kills before the first step after a start."""
    differences: dict[str, float] = field(default_factory=dict)
    """Largest relative difference of a tensor, by run."""


def words(out: Path) -> list[str]:
    train = ["train", "--out", str(out), "--resume", "auto", "--quiet", *TRAIN]
    return [*train, *(word for setting in SETTINGS for word in ("--set", setting))]


@contextmanager
def group(out: Path, processes: int, restarts: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A torchrun group at work, which is over, if need be by force, when the block is left."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*torchrun, f"--max-restarts={restarts}", "--monitor-interval=0.1", __file__, "--train", *words(out)]
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(
            command, stdout=told, stderr=told, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        try:
            yield process
            if process.wait():
                told.seek(0)
                raise SystemExit(f"torchrun ended with code {process.returncode}:\n{told.read()}")
        finally:
            for number in [process.pid, *workers(process)]:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            process.wait()


def workers(process: subprocess.Popen[str]) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(word) for word in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    return []


def finish(out: Path, processes: int) -> float:
    started = time.monotonic()
    with group(out, processes):
        pass
    return time.monotonic() - started


def steps_done(out: Path) -> int:
    metrics = out / "metrics.jsonl"
    return metrics.read_text().count('"train"') if metrics.exists() else 0


def kill_and_let_restart(out: Path, kills: int, longest: float, rng: random.Random, outcome: Outcome) -> None:
    """Kill one of two workers at a moment between the start of the group and ``longest`` seconds after it, again and
    again; torchrun starts the group anew each time."""
    with group(out, 2, restarts=kills) as process:
        before: list[int] = []
        for _ in range(kills):
            while process.poll() is None and (len(workers(process)) < 2 or set(workers(process)) & set(before)):
                time.sleep(0.02)
            done, before = steps_done(out), workers(process)
            until = time.monotonic() + rng.uniform(0, longest)
            while process.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            if process.poll() is not None or len(workers(process)) < 2:
                return
            os.kill(rng.choice(workers(process)), signal.SIGKILL)
            outcome.kills += 1
            outcome.kills_in_start += steps_done(out) <= done


def kill_the_group(out: Path, steps: int) -> None:
    """Kill torchrun and its two workers at once when they have done some steps."""
    with suppress(SystemExit), group(out, 2) as process:
        while process.poll() is None and steps_done(out) < steps:
            time.sleep(0.02)
        for number in [*workers(process), process.pid]:
            os.kill(number, signal.SIGKILL)


def difference(one: Path, other: Path) -> float:
    """Largest difference of a tensor of the last checkpoint, as a share of the largest number in it.

    Weights, averaged weights and statistics; not the optimiser's state, which is nothing but rounding for a parameter
    whose gradient is zero by mathematics, such as a bias before a normalisation.
    """
    states = [load_file(sorted((folder / "checkpoints").glob("step-*"))[-1]) for folder in (one, other)]
    assert states[0].keys() == states[1].keys()
    pairs = [
        (states[0][name].double(), states[1][name].double())
        for name in states[0]
        if name.startswith(("learner.", "ema."))
    ]
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-12)) for a, b in pairs if a.numel())


def stress(kills: int, folder: Path, seed: int = 0) -> Outcome:
    outcome, rng, calm = Outcome(), random.Random(seed), folder / "calm"
    longest = finish(calm, 2)
    number = 0
    while outcome.kills < kills:
        out = folder / f"killed-{number}"
        kill_and_let_restart(out, kills - outcome.kills, longest, rng, outcome)
        outcome.differences[f"{out.name}, two processes to the end"] = difference(calm, out)
        number += 1
    out = folder / "one"
    kill_the_group(out, rng.randrange(10, 60))
    left = steps_done(out)
    assert not (out / "summary.json").exists(), "the group was through before it could be killed"
    finish(out, 1)
    outcome.differences[f"killed after {left} steps, one process to the end"] = difference(calm, out)
    return outcome


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        from unissl.cli import main

        torch.set_default_dtype(torch.float64)
        main(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        result = stress(arguments.kills, Path(temporary), arguments.seed)
    print(f"{result.kills} kills, {result.kills_in_start} of them before the first step after a start")
    for run, value in result.differences.items():
        print(f"{run}: weights differ by {value:.1e}")
    sys.exit(max(result.differences.values()) > TOLERANCE)
