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

WORDS = (
    *("train", "--data", "digits", "--method", "fixmatch", "--net", "small", "--steps", "6", "--threads", "1"),
    *("--set", "train.epochs=2", "--set", "train.log_every=1", "--set", "data.size=8", "--set", "augment.pad=1"),
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


def test_two_processes_write_one_run_and_speak_with_one_voice(here: Path) -> None:
    assert command(*WORDS, "--out", "alone").code == 0
    first, second = on_two(*WORDS, "--out", "both")
    assert (first.code, second.code) == (0, 0), first.err
    assert "labels-only: accuracy" in first.out and first.out.count("written to") == 1
    assert (second.out, second.err) == ("", "")
    assert_same_run(here / "alone", here / "both")
    assert_same_run(here / "alone" / "labels-only", here / "both" / "labels-only")
    assert not list(here.rglob("*.draft"))

    # A user's mistake is told once, whoever finds it.
    outcomes = on_two(*WORDS, "--out", "both")
    assert [outcome.code for outcome in outcomes] == [1, 1]
    assert "".join(outcome.err for outcome in outcomes).count("already holds a run") == 1
    outcomes = on_two("datasets")
    assert "".join(outcome.err for outcome in outcomes).count("Only `unissl train` runs on several processes") == 1


def test_a_run_of_two_processes_goes_on_with_one(here: Path) -> None:
    assert command(*WORDS, "--no-reference", "--out", "alone").code == 0
    half = ("--no-reference", "--out", "cut", "--resume", "auto")
    assert on_two(*WORDS, *half)[0].code == 0
    for name in ("summary.json", "model.safetensors"):  # as if it had been killed after its first checkpoint
        (here / "cut" / name).unlink()
    newest = sorted((here / "cut" / "checkpoints").iterdir())[-1]
    newest.unlink()
    assert command(*WORDS, *half).code == 0
    assert_same_run(here / "alone", here / "cut")


def test_threads_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from unissl import assembly
    from unissl.run_config import MachineConfig

    monkeypatch.setattr("os.cpu_count", lambda: 8)
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(assembly, "current", lambda: World(1, 4, 1, 2))
    assembly.find_device(MachineConfig())
    assembly.find_device(MachineConfig(threads=3))
    assert asked == [4, 3]


def test_help_knows_resume_auto() -> None:
    assert "auto" in succeed("train", "--help").out
