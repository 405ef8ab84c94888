"""Runs that several tests look at, each made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import QUICK, TRAIN_DIGITS, Refuses, call, fill_disk, make_photos, snapshot, succeed


@pytest.fixture
def refuses(here: Path) -> Refuses:
    """Call the command and demand one sentence with the given parts, the exit code, and files as they were."""

    def check(*words: str | Path, says: tuple[str, ...], code: int = 1) -> str:
        before = snapshot(here)
        outcome = call(*words)
        assert outcome.code == code
        assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1, outcome.err
        assert not [part for part in says if part not in outcome.err], outcome.err
        assert snapshot(here) == before
        return outcome.err

    return check


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with a cache of its own, for runs that outlive a test."""
    place = tmp_path_factory.mktemp("workshop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNISSL_CACHE", str(place / "cache"))
        yield place


@pytest.fixture(scope="session")
def finished_run(workshop: Path) -> Path:
    """Digits, trained to the end."""
    succeed(*TRAIN_DIGITS, "--set", "train.checkpoint_every=1", "--out", workshop / "finished")
    return workshop / "finished"


@pytest.fixture(scope="session")
def cut_off_run(workshop: Path) -> Path:
    """The same run, stopped by a full disk when all training was done: two checkpoints and no results."""
    out = workshop / "cut-off"
    with pytest.MonkeyPatch.context() as patch:
        fill_disk(patch, "model.safetensors")
        outcome = call(*TRAIN_DIGITS, "--set", "train.checkpoint_every=1", "--out", out)
    assert outcome.code == 1
    assert len(list((out / "checkpoints").iterdir())) == 2
    return out


@pytest.fixture(scope="session")
def photo_run(workshop: Path) -> tuple[Path, str]:
    """A folder of photos with test images: trained with its reference, and what the terminal said."""
    make_photos(workshop / "photos")
    make_photos(workshop / "photos-test", each=3, pool=0)
    words = ("train", "--data", workshop / "photos", "--test", workshop / "photos-test", *QUICK)
    return workshop / "photo-run", succeed(*words, "--out", workshop / "photo-run").out
