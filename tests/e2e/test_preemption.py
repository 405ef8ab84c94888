"""A scheduler takes the machine away at the worst moments, and gives the same command again."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import QUICK, TRAIN_DIGITS, Refuses, call, make_photos, snapshot, succeed

SAME = (
    "config.toml",
    "split.json",
    "data_fingerprint.json",
    "model.safetensors",
    "manifest.json",
    "predictions.parquet",
)


def signal_at(patch: pytest.MonkeyPatch, place: str, number: int) -> None:
    """Let the signal arrive, once, when the function ``module:name`` is called."""
    module, name = place.split(":")
    home = importlib.import_module(module)
    really = getattr(home, name)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        patch.setattr(home, name, really)
        os.kill(os.getpid(), number)
        return really(*arguments, **options)

    patch.setattr(home, name, interrupted)


STAGES = (
    (
        "unissl.run.pipeline:evaluate",
        signal.SIGTERM,
        "after step 1; the state is saved; continue with: unissl train --resume --out run",
    ),
    (
        "unissl.training.trainer:set_learning_rate",
        signal.SIGUSR1,
        "after step 2; the state is saved; continue with: unissl train --resume --out run",
    ),  # the last step
    (
        "unissl.run.cross_validation:predict_with_ema",
        signal.SIGUSR1,
        "finished stages are saved in run; continue with: unissl train --resume --out run",
    ),
    (
        "unissl.run.pipeline:write_results",
        signal.SIGTERM,
        "finished stages are saved in run; continue with: unissl train --resume --out run",
    ),
    (
        "unissl.run.pipeline:train_baseline",
        signal.SIGTERM,
        "finished stages are saved in run; continue with: unissl train --resume --out run",
    ),
    (
        "unissl.report.html:render",
        signal.SIGUSR1,
        "finished stages are saved in run; continue with: unissl train --resume --out run",
    ),
)


def test_preempted_at_every_stage(here: Path) -> None:
    """Training, its last step, cross-validation, results, baseline, report: each is interrupted once."""
    make_photos(here / "photos", pool=4)
    words = ("train", "--data", "photos", *QUICK, "--set", "train.cv_folds=2")
    succeed(*words, "--out", "calm")
    for place, number, saved in STAGES:
        with pytest.MonkeyPatch.context() as patch:
            signal_at(patch, place, number)
            outcome = call(*words, "--resume", "auto", "--out", "run")
        assert outcome.code == 75, (place, outcome.err)
        assert f"stopped by {signal.Signals(number).name}" in outcome.err and saved in outcome.err, place
        leave_drafts(here / "run")
    assert "run is finished already" in succeed(*words, "--resume", "auto", "--out", "run").err
    ours, calm = snapshot(here / "run"), snapshot(here / "calm")
    assert ours.keys() == calm.keys() and not any("folds" in name for name in ours)
    for name in (*SAME, "cross_validation.json", "baseline/model.safetensors", "baseline/cross_validation.json"):
        assert ours[name] == calm[name], name
    assert (here / "run" / "report.html").exists()


def leave_drafts(run: Path) -> None:
    """What a kill in the middle of a file leaves behind: drafts of files that are not there yet."""
    (run / "baseline").mkdir(exist_ok=True)
    for path in (run / "report.html", run / "folds" / "0.json", run / "baseline" / "config.toml"):
        if path.parent.exists() and not path.exists():
            path.with_name(f".{path.name}.1.draft").touch()


def test_plain_resume_also_trains_the_baseline(here: Path) -> None:
    words = [word for word in TRAIN_DIGITS if word != "--no-baseline"]
    with pytest.MonkeyPatch.context() as patch:
        signal_at(patch, "unissl.run.pipeline:train_baseline", signal.SIGTERM)
        assert call(*words, "--out", "run").code == 75
    succeed("train", "--resume", "--quiet", "--out", "run")
    assert (here / "run" / "baseline" / "summary.json").exists()


def test_auto_starts_and_shows_again(here: Path, finished_run: Path) -> None:
    words = (*TRAIN_DIGITS, "--set", "train.checkpoint_every=1", "--resume", "auto", "--out", "run")
    started = succeed(*words)
    assert "finished already" not in started.err and "resuming" not in started.err
    assert (here / "run" / "model.safetensors").read_bytes() == (finished_run / "model.safetensors").read_bytes()
    before = snapshot(here)
    again = succeed(*(word for word in words if word != "--quiet"))
    assert again.err == "run is finished already\n" and again.out == started.out and snapshot(here) == before


def test_auto_with_a_recipe(here: Path) -> None:
    words = (*TRAIN_DIGITS, "--recipe", "short", "--resume", "auto", "--out", "run")
    with pytest.MonkeyPatch.context() as patch:
        signal_at(patch, "unissl.run.pipeline:write_results", signal.SIGTERM)
        assert call(*words).code == 75
    words = tuple(word for word in words if word != "--quiet")
    assert "resuming run\n" in succeed(*words).err


def test_auto_does_not_go_on_with_another_configuration(refuses: Refuses, here: Path, cut_off_run: Path) -> None:
    shutil.copytree(cut_off_run, here / "run")
    before = snapshot(here)
    outcome = call(*TRAIN_DIGITS, "--resume", "auto", "--out", "run", "--seed", "1")
    assert outcome.code == 1 and "another configuration (seed: 0 -> 1)" in outcome.err and snapshot(here) == before
    refuses("train", "--resume", "auto", says=("To resume a run, name its folder: --out",))


def test_two_runs_on_one_folder(here: Path, cut_off_run: Path, refuses: Refuses) -> None:
    from unissl.run.lock import locked
    from unissl.run_folder import RunFolder

    shutil.copytree(cut_off_run, here / "run")
    with locked(RunFolder("run")):
        refuses("train", "--resume", "--quiet", "--out", "run", says=("Another process is using run",))
    (here / "empty").mkdir()
    with locked(RunFolder("empty")):
        refuses(*TRAIN_DIGITS, "--out", "empty", says=("Another process is using empty", "another --out"))
    succeed("train", "--resume", "--no-baseline", "--quiet", "--out", "run")
