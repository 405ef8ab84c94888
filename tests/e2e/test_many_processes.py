"""The command on two processes: one run folder, the numbers of one process, one voice, and resume on another number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cli_helpers import Outcome, call, succeed
from process_group import on_processes
from safetensors.torch import load_file

from unissl.distributed.group import World
from unissl.nets import DEFAULT_BACKBONE, backbone_installed

WORDS = (
    *("train", "--data", "digits", "--method", "fixmatch", "--net", "small", "--steps", "6", "--threads", "1"),
    *("--set", "train.evaluations=2", "--set", "train.log_every=1"),
    *("--set", "data.image_size=8", "--set", "augment.pad=1"),
    *("--set", "batch.labelled=5", "--set", "batch.unlabelled=9"),
)


def command(*words: str) -> Outcome:
    """``unissl WORDS`` in double precision, in which runs of other numbers of processes do not drift apart."""
    torch.set_default_dtype(torch.float64)
    try:
        return call(*words)
    finally:
        torch.set_default_dtype(torch.float32)


def on_two(*words: str) -> list[Outcome]:
    return on_processes(2, command, *words, join=False)


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [value for line in lines if line["kind"] == "train" for value in line["loss"].values()]


def assert_same_run(one: Path, other: Path) -> None:
    assert losses(one) == pytest.approx(losses(other), rel=1e-9)
    weights, others = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    for name, value in weights.items():
        torch.testing.assert_close(others[name], value, rtol=1e-8, atol=1e-10)
    scores, theirs = (json.loads((folder / "summary.json").read_text()) for folder in (one, other))
    assert scores["accuracy"] == theirs["accuracy"] and scores["confusion_matrix"] == theirs["confusion_matrix"]


def test_two_processes_write_one_run_with_one_voice_and_one_goes_on_with_it(here: Path) -> None:
    assert command(*WORDS, "--no-baseline", "--out", "alone").code == 0
    first, second = on_two(*WORDS, "--out", "both")
    assert (first.code, second.code) == (0, 0), first.err
    assert "baselines: labels-only" in first.out and first.out.count("run folder: ") == 1
    assert (second.out, second.err) == ("", "")
    assert_same_run(here / "alone", here / "both")
    assert (here / "both" / "baseline" / "summary.json").exists()
    assert not list(here.rglob("*.draft"))

    interrupt(here / "both")
    assert command(*WORDS, "--no-baseline", "--resume", "auto", "--out", "both").code == 0
    assert_same_run(here / "alone", here / "both")


def interrupt(folder: Path) -> None:
    """As if the run had been killed after its first checkpoint."""
    for name in ("summary.json", "model.safetensors"):
        (folder / name).unlink()
    sorted((folder / "checkpoints").iterdir())[-1].unlink()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("datasets",), "Only `unissl train` runs on several processes"),
        ((*WORDS, "--out", "taken"), "taken is not empty"),
        ((*WORDS, "--set", "machine.compile=on"), "Compiling the network is for a single process"),
    ],
)
def test_a_mistake_is_told_once(here: Path, words: tuple[str, ...], sentence: str) -> None:
    (here / "taken").mkdir()
    (here / "taken" / "notes.txt").touch()
    outcomes = on_two(*words)
    assert [outcome.code for outcome in outcomes] == [1, 1]
    assert "".join(outcome.err for outcome in outcomes).count(sentence) == 1


def test_threads_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from unissl.run import setup
    from unissl.run.config import MachineConfig

    monkeypatch.setattr("unissl.run.setup.cpu_count", lambda: 8)
    requested: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", requested.append)
    monkeypatch.setattr(setup, "current", lambda: World(1, 4, 1, 2))
    setup.setup_device(MachineConfig())
    setup.setup_device(MachineConfig(threads=3))
    assert requested == [4, 3]


def test_help_knows_resume_auto() -> None:
    assert "auto" in succeed("train", "--help").out


@pytest.mark.skipif(not backbone_installed(DEFAULT_BACKBONE), reason="needs the extra 'photos'")
def test_each_process_distils_for_itself_and_only_one_prints(here: Path) -> None:
    overrides = {
        "train.evaluations": 1,
        "data.image_size": 32,
        "augment.cached_views": 1,
        "distil.epochs": 0.2,
        "batch.labelled": 8,
        "batch.unlabelled": 8,
    }
    words = (
        *("train", "--data", "digits", "--method", "fixmatch", "--recipe", "photos", "--steps", "3", "--no-baseline"),
        *(word for key, value in overrides.items() for word in ("--set", f"{key}={value}")),
        *("--max-count", "10", "--out", "run"),
    )
    first, second = on_processes(2, call, *words, join=False)
    assert (first.code, second.code) == (0, 0), first.err
    assert first.out.count("accuracy") >= 1 and (second.out, second.err) == ("", "")
    assert json.loads((here / "run" / "manifest.json").read_text())["distilled"]
