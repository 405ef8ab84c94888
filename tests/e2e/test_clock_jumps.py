"""The machine's clock is set while a run goes on. Nothing but monotonic clocks and file names is asked."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from cli_helpers import TRAIN_DIGITS, snapshot, succeed

YEAR = 365 * 86400.0
SAME = ("model.safetensors", "predictions.parquet", "split.json")


@pytest.fixture
def jumping_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock finds it years ahead of, or behind, the last."""
    jumps, really = itertools.cycle([0.0, 30 * YEAR, -30 * YEAR, 1.0, -YEAR]), time.time
    monkeypatch.setattr(time, "time", lambda: really() + next(jumps))
    monkeypatch.setattr(time, "time_ns", lambda: int(time.time() * 1e9))


@pytest.mark.usefixtures("jumping_clock")
def test_a_run_under_a_jumping_clock(here: Path, finished_run: Path) -> None:
    succeed(*TRAIN_DIGITS, "--set", "train.checkpoint_every=1", "--out", "run")
    ours, calm = snapshot(here / "run"), snapshot(finished_run)
    assert [ours[name] for name in SAME] == [calm[name] for name in SAME]
    seconds = [json.loads(line)["seconds"] for line in (here / "run" / "metrics.jsonl").read_text().splitlines()]
    assert seconds == sorted(seconds) and seconds[0] >= 0 and seconds[-1] < 600
    assert 0 <= json.loads((here / "run" / "summary.json").read_text())["seconds"] < 600


@pytest.mark.usefixtures("jumping_clock")
def test_resume_of_files_from_the_future_and_the_past(here: Path, cut_off_run: Path, finished_run: Path) -> None:
    """The newest checkpoint is the one with the highest step, whatever its time says."""
    shutil.copytree(cut_off_run, here / "run")
    older, newer = sorted((here / "run" / "checkpoints").iterdir())
    os.utime(older, (4e9, 4e9))
    os.utime(newer, (0, 0))
    for name in ("config.toml", "split.json", "metrics.jsonl"):
        os.utime(here / "run" / name, (4e9, 4e9))
    before = newer.read_bytes()
    succeed("train", "--resume", "--no-baseline", "--quiet", "--out", "run")
    assert newer.read_bytes() == before  # nothing was trained again
    ours, calm = snapshot(here / "run"), snapshot(finished_run)
    assert [ours[name] for name in SAME] == [calm[name] for name in SAME]
