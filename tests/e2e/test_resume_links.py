"""A run folder from a stranger: `train --resume` writes and deletes nothing outside it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from cli_helpers import Refuses, snapshot, succeed

RESUME = ("train", "--resume", "--quiet", "--out", "run")


@pytest.fixture
def cut_off(here: Path, cut_off_run: Path) -> Path:
    return Path(shutil.copytree(cut_off_run, here / "run"))


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", "plots", "folds", "labels-only", ".lock"])
def test_links_inside_are_refused(refuses: Refuses, here: Path, cut_off: Path, name: str) -> None:
    """What they lead to is what was there before, so that nothing but the link is out of order."""
    (cut_off / "plots").mkdir()
    (cut_off / name).exists() or (cut_off / name).mkdir()
    (cut_off / name).rename(here / "elsewhere")
    (cut_off / name).symlink_to(here / "elsewhere")
    refuses(*RESUME, says=(f"run/{name} is a symbolic link", "put a real", "or remove it"))


def test_a_run_that_is_linked_as_a_whole_goes_on(here: Path, cut_off: Path) -> None:
    cut_off.rename(here / "other-disk")
    cut_off.symlink_to(here / "other-disk")
    succeed(*RESUME, "--no-reference")
    assert (here / "other-disk" / "summary.json").is_file()


def test_links_in_the_place_of_results_are_replaced(here: Path, cut_off: Path) -> None:
    (here / "elsewhere").mkdir()
    for name in ("a", "b", "c"):
        (here / "elsewhere" / name).write_text("mine")
    before = snapshot(here / "elsewhere")
    (cut_off / "plots").mkdir()
    (cut_off / "plots" / "learning_curves.svg").symlink_to(here / "elsewhere" / "a")
    (cut_off / "model.safetensors").symlink_to(here / "elsewhere" / "b")
    (cut_off / f".manifest.json.{os.getpid()}.draft").symlink_to(here / "elsewhere" / "c")
    succeed(*RESUME, "--no-reference")
    assert snapshot(here / "elsewhere") == before
    assert not (cut_off / "plots" / "learning_curves.svg").is_symlink()
