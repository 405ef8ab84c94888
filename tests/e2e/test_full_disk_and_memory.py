"""A disk that is full when a line, a page or a picture is written. Files that are moved into place: see
``test_refused_folders.py``; the cache: ``tests/unit/data``."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from cli_helpers import TRAIN_DIGITS, call, fill_disk, snapshot, succeed

from unissl.errors import is_memory_shortage
from unissl.utils.atomic import open_regular

RESUME = ("train", "--resume", "--no-baseline", "--quiet", "--out", "run")


class HalfWritten:
    """A file that takes a part of what is written, and then no more."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def __enter__(self) -> HalfWritten:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, text: bytes) -> None:
        self.file.write(text[: len(text) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("after", [0, 2])
def test_half_a_line_of_metrics(here: Path, finished_run: Path, after: int) -> None:
    """Before the first checkpoint and after it: the half line is cut off and written again."""
    written = 0

    def open_metrics(path: Path, mode: Any) -> Any:
        nonlocal written
        file = open_regular(path, mode)
        if path.name != "metrics.jsonl" or mode != "ab":
            return file
        written += 1
        return HalfWritten(file) if written > after else file

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unissl.run_folder.open_regular", open_metrics)
        outcome = call(*TRAIN_DIGITS, "--set", "train.checkpoint_every=1", "--out", "run")
    assert outcome.code == 1 and outcome.err.count("\n") == 1
    assert outcome.err.startswith("error: The disk is full at run/metrics.jsonl; free some space")
    assert not (here / "run" / "metrics.jsonl").read_text().endswith("\n")
    succeed(*RESUME)
    same = ("model.safetensors", "predictions.parquet", "split.json")
    ours, theirs = snapshot(here / "run"), snapshot(finished_run)
    assert [ours[file] for file in same] == [theirs[file] for file in same]
    lines = [len((folder / "metrics.jsonl").read_text().splitlines()) for folder in (here / "run", finished_run)]
    assert lines[0] == lines[1]


def test_the_report(here: Path, finished_run: Path) -> None:
    shutil.copytree(finished_run, here / "run")
    before = snapshot(here)
    with pytest.MonkeyPatch.context() as patch:
        fill_disk(patch, "report.html")
        outcome = call("report", "run")
    assert outcome.code == 1 and "error: The disk is full at run/report.html; free some space" in outcome.err
    assert snapshot(here) == before
    succeed("report", "run")


def test_the_charts(here: Path, finished_run: Path) -> None:
    """The run is not called finished without them."""
    from matplotlib.figure import Figure

    def savefig(self: Figure, *rest: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        outcome = call(*TRAIN_DIGITS, "--out", "run")
    assert outcome.code == 1 and outcome.err.startswith("error: The disk is full at run/plots/")
    assert not (here / "run" / "summary.json").exists()
    succeed(*RESUME)
    assert sorted(p.name for p in (here / "run" / "plots").iterdir()) == sorted(
        p.name for p in (finished_run / "plots").iterdir()
    )


def test_too_little_memory_is_a_sentence(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from unissl.training.learner import Learner

    def losses(self: Learner, *rest: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Learner, "losses", losses)
    outcome = call(*TRAIN_DIGITS, "--out", "run")
    assert outcome.code == 1 and outcome.err.count("\n") == 1
    assert outcome.err.startswith("error: There is not enough memory for batches of 4 labelled and 8 unlabelled images")
    assert "--set batch.labelled=2 --set batch.unlabelled=4" in outcome.err


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("can't start new thread"),
        RuntimeError("_MTIAGraph: Unable to create type object!"),
        MemoryError(),
    ],
)
def test_memory_that_is_refused_in_any_words(error: Exception) -> None:
    assert is_memory_shortage(error)
    later = AttributeError("partially initialised module")
    later.__context__ = error
    assert is_memory_shortage(later)
    assert not is_memory_shortage(ImportError("No module named 'x'")) and not is_memory_shortage(RuntimeError("shape"))
