"""Files that change while a job is away are noticed when it comes back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli_helpers import TRAIN_PHOTOS, Refuses, call, fill_disk, make_photos, picture, succeed

RESUME = ("train", "--resume", "--no-baseline", "--no-report", "--quiet", "--out", "run")


@pytest.fixture
def cut_off(here: Path) -> Path:
    """A run on photos with test images, stopped when training was done."""
    make_photos(here / "photos")
    make_photos(here / "exam", each=2, pool=0)
    with pytest.MonkeyPatch.context() as patch:
        fill_disk(patch, "model.safetensors")
        assert call(*TRAIN_PHOTOS, "--test", "exam", "--no-report", "--out", "run").code == 1
    return here / "run"


@pytest.mark.parametrize(
    ("file", "part"),
    [("photos/unlabeled/3.png", "training"), ("photos/cat/0.png", "training"), ("exam/dog/1.png", "test")],
)
def test_other_pixels_under_the_same_name(refuses: Refuses, cut_off: Path, here: Path, file: str, part: str) -> None:
    old = (here / file).read_bytes()
    picture(60, seed=999).save(here / file)
    outcome = call(*RESUME)
    assert outcome.code == 1 and outcome.err.count("\n") == 1
    assert f"The {part} data have changed since run was started; put the old files back" in outcome.err
    (here / file).write_bytes(old)
    succeed(*RESUME)


def test_files_that_were_only_touched(cut_off: Path, here: Path) -> None:
    for path in (here / "photos").rglob("*.png"):
        os.utime(path, (4e9, 4e9))
    succeed(*RESUME)


def test_a_run_cut_off_before_the_hashes_were_noted(cut_off: Path, here: Path) -> None:
    noted = (cut_off / "data_fingerprint.json").read_text()
    (cut_off / "data_fingerprint.json").unlink()
    succeed(*RESUME)
    assert (cut_off / "data_fingerprint.json").read_text() == noted and set(json.loads(noted)) == {"training", "test"}
