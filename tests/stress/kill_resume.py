"""Kill a run with SIGKILL at random moments, resume it, and compare what is left with a run that was left alone.

    python tests/stress/kill_resume.py --kills 20
    python tests/stress/kill_resume.py --kills 100 --per-run 1

With --per-run 1 every kill has an end of its own to be compared; by default a run is killed four times. Checkpoints are
written at every step, so that many of the kills fall into the writing of one: those leave a draft behind, and are
counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from unissl.run_folder import WALL_CLOCK_FIELDS

TRAIN = ["--data", "digits", "--method", "sage", "--net", "wrn-10-1", "--steps", "40", "--threads", "1", "--quiet"]
SETTINGS = [
    "train.evaluations=5",
    "train.log_every=1",
    "train.checkpoint_every=1",
    "batch.labelled=8",
    "batch.unlabelled=16",
]
COMPARED = (
    "config.toml",
    "split.json",
    "model.safetensors",
    "manifest.json",
    "predictions.parquet",
    "test_predictions.parquet",
)


@dataclass
class Outcome:
    kills: int = 0
    kills_in_checkpoint: int = 0
    ends: int = 0
    different: tuple[str, ...] = ()


def command(out: Path, *, resume: bool) -> list[str]:
    words = [sys.executable, "-m", "unissl", "train", "--out", str(out), "--no-baseline"]
    if resume:
        return [*words, "--resume", "--threads", "1", "--quiet"]
    return [*words, *TRAIN, *(word for setting in SETTINGS for word in ("--set", setting))]


def run_to_end(out: Path, *, resume: bool = False) -> float:
    """Seconds the run took."""
    started = time.monotonic()
    subprocess.run(command(out, resume=resume), check=True, capture_output=True, env=environment())
    return time.monotonic() - started


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def kill_once(out: Path, after: float, outcome: Outcome) -> None:
    """Start or continue the run and kill it ``after`` seconds of training."""
    resume = (out / "config.toml").exists()
    process = subprocess.Popen(
        command(out, resume=resume), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
    )
    metrics = out / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns if metrics.exists() else 0
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_mtime_ns > before):
        time.sleep(0.005)
    time.sleep(after)
    if process.poll() is None:
        process.kill()
        outcome.kills += 1
    process.wait()
    outcome.kills_in_checkpoint += any(out.glob("checkpoints/.*.draft"))


def without_clock(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_clock(inner) for key, inner in value.items() if key not in WALL_CLOCK_FIELDS}
    return [without_clock(inner) for inner in value] if isinstance(value, list) else value


def differences(one: Path, other: Path) -> tuple[str, ...]:
    """Names of files that differ, wall-clock fields apart."""
    found = [name for name in COMPARED if (one / name).read_bytes() != (other / name).read_bytes()]
    for name in ("metrics.jsonl", "summary.json"):
        texts = [(folder / name).read_text() for folder in (one, other)]
        if name.endswith("jsonl"):
            read = [[without_clock(json.loads(line)) for line in text.splitlines()] for text in texts]
        else:
            read = [without_clock(json.loads(text)) for text in texts]
        if read[0] != read[1]:
            found.append(name)
    states = [load_file(sorted((folder / "checkpoints").glob("step-*"))[-1]) for folder in (one, other)]
    found += [f"checkpoint: {name}" for name in states[0] if not torch.equal(states[0][name], states[1][name])]
    return tuple(found)


def stress(kills: int, folder: Path, seed: int = 0, per_run: int = 4) -> Outcome:
    """Runs that are killed some times each until ``kills`` kills have happened; every one must end as the calm one."""
    calm, outcome, rng = folder / "calm", Outcome(), random.Random(seed)
    run_to_end(calm)
    number = 0
    while outcome.kills < kills:
        out = folder / f"killed-{number}"
        for _ in range(min(per_run, kills - outcome.kills)):
            kill_once(out, rng.uniform(0, 1.0), outcome)
            if (out / "summary.json").exists():
                break
        run_to_end(out, resume=True)
        outcome.different += tuple(f"{out.name}/{name}" for name in differences(calm, out))
        outcome.ends += 1
        shutil.rmtree(out)
        print(f"{outcome.kills} kills, {outcome.ends} ends, different: {outcome.different or 'none'}", flush=True)
        number += 1
    return outcome


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--per-run", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        result = stress(arguments.kills, Path(temporary), arguments.seed, arguments.per_run)
    print(f"{result.kills} kills, {result.kills_in_checkpoint} of them while a checkpoint was being written")
    print(
        f"all {result.ends} runs ended bit for bit the same"
        if not result.different
        else f"different: {result.different}"
    )
    sys.exit(bool(result.different))
