"""Ctrl-C at every stage: one sentence says what is kept and how to continue, and the exit code is 130."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import QUICK, Outcome, call, make_photos, succeed

from unissl.nets import DEFAULT_BACKBONE, backbone_installed

RESUME = "continue with: unissl train --resume --out run\n"
STAGES_KEPT = f"stopped by Ctrl-C; finished stages are saved in run; {RESUME}"
REPEAT = "stopped by Ctrl-C; finished work is kept; repeat the command to continue\n"
Press = Callable[..., Outcome]


@pytest.fixture
def press() -> Iterator[Press]:
    """Call the command and press Ctrl-C, once, when the function ``module:name`` is called."""
    # A process that a script starts in the background ignores SIGINT; the usual handler is what is tested.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def press_at(place: str, *words: str | Path) -> Outcome:
        module, name = place.split(":")
        home = importlib.import_module(module)
        really = getattr(home, name)
        with pytest.MonkeyPatch.context() as patch:

            def interrupted(*arguments: Any, **options: Any) -> Any:
                patch.setattr(home, name, really)
                os.kill(os.getpid(), signal.SIGINT)
                return really(*arguments, **options)

            patch.setattr(home, name, interrupted)
            outcome = call(*words)
        assert outcome.code == 130 and "Traceback" not in outcome.err, (place, outcome.err)
        return outcome

    yield press_at
    signal.signal(signal.SIGINT, before)


def test_stages_of_a_run(press: Press, here: Path) -> None:
    make_photos(here / "photos", pool=4)
    start = ("train", "--data", "photos", *QUICK, "--set", "train.cv_folds=2", "--out", "run")
    for place in ("unissl.run.pipeline:load_data", "unissl.run.pipeline:prepare_inputs"):  # decoding, features
        assert press(place, *start).err.endswith(REPEAT) and not (here / "run").exists()
    training = press("unissl.run.pipeline:evaluate", *start)
    assert training.err.endswith(f"stopped by SIGINT after step 1; the state is saved; {RESUME}")
    later = ("train", "--resume", "--out", "run")
    for place in (
        "unissl.run.inputs:build_split",  # decoding and features of the resumed run
        "unissl.run.cross_validation:predict_with_ema",
        "unissl.run.pipeline:write_results",
        "unissl.run.pipeline:train_baseline",
        "unissl.report.html:render",
    ):
        assert press(place, *later).err.endswith(STAGES_KEPT), place
    succeed(*later)
    assert (here / "run" / "report.html").exists() and (here / "run" / "baseline" / "summary.json").exists()


@pytest.mark.skipif(not backbone_installed(DEFAULT_BACKBONE), reason="needs the pretrained weights")
def test_features_and_distillation(press: Press, here: Path) -> None:
    make_photos(here / "photos")
    start = ("train", "--images", "photos", "--steps", "2", "--set", "data.image_size=32", "--no-baseline")
    start += ("--set", "train.cv_folds=0", "--out", "run")
    assert press("unissl.run.inputs:extract_features", *start).err.endswith(REPEAT)
    assert press("unissl.run.pipeline:run_distillation", *start).err.endswith(STAGES_KEPT)
    succeed("train", "--resume", "--out", "run")


def test_predictions_on_standard_output_are_not_said_to_be_kept(press: Press, here: Path, finished_run: Path) -> None:
    make_photos(here / "photos")
    kept = "predictions are kept only in a file; repeat the command with --out predictions.csv"
    for place in ("unissl.inference.model:load_weights", "unissl.inference.model:predict_chunk"):
        assert press(place, "predict", finished_run, "photos").err == f"stopped by Ctrl-C; {kept}\n", place


def test_demo_and_grid_are_repeated_whole(press: Press, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = "finished runs and checkpoints are kept in mine; repeat the command to continue\n"
    demo = press("unissl.run.pipeline:write_results", "demo", "--steps", "2", "--out", "mine")
    assert demo.err.endswith(f"stopped by Ctrl-C; {kept}")
    grid = ("paper", "run", "table1", "--scale", "mini", "--methods", "fixmatch", "--seeds", "0", "--out", "mine")
    assert press("unissl_paper.run:show_progress", *grid).err.endswith(f"stopped by Ctrl-C; {kept}")
