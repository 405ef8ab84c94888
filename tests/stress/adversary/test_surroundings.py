"""What surrounds a command: a folder that is gone, a run folder among the images, environment variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import unissl
from unissl.errors import UserError

pytestmark = [pytest.mark.adversary, pytest.mark.skipif(os.name != "posix", reason="folders in use stay on Windows")]


def run(*words: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "unissl", *map(str, words)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def run_in_removed_folder(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "gone").mkdir()
    script = 'cd gone && rmdir ../gone && exec "$@"'
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "unissl", *words]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("words", [("methods",), ("report", "/run"), ("train", "--data", "digits"), ("cache",)])
def test_the_current_folder_was_removed(tmp_path: Path, words: tuple[str, ...]) -> None:
    """MKL ended the process with a sentence about a library."""
    done = run_in_removed_folder(tmp_path, *words)
    assert done.returncode == 1
    assert done.stderr == "error: The current folder was removed; change to another with cd and repeat the command.\n"


def test_help_in_a_removed_folder(tmp_path: Path) -> None:
    assert run_in_removed_folder(tmp_path, "--help").returncode == 0


@pytest.mark.parametrize("date", ["junk", "9" * 30, "-1"])
def test_a_wrong_source_date(tmp_path: Path, date: str) -> None:
    """numpy reads it when scipy is imported, as for reports."""
    done = run("report", "nowhere", cwd=tmp_path, SOURCE_DATE_EPOCH=date)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr


def photos(root: Path) -> Path:
    from PIL import Image

    for name in ("cat", "dog"):
        for i in range(3):
            (root / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (80 * i, 0, 200 if name == "cat" else 0)).save(root / name / f"{i}.png")
    return root


@pytest.mark.parametrize("out", ["photos/run", "photos/cat/run", "photos", "link/run", "test/run"])
def test_a_run_folder_among_the_images(here: Path, out: str) -> None:
    """Its charts would be images of the next training."""
    photos(here / "photos")
    photos(here / "test")
    (here / "link").symlink_to(here / "photos")
    before = sorted(here.rglob("*"))
    with pytest.raises(UserError, match="inside the images folder (photos|test), .*name one elsewhere|is not empty"):
        unissl.train("photos", test="test", out=out, steps=1, config={"net": {"name": "small"}})
    assert sorted(here.rglob("*")) == before


def test_the_default_run_folder_among_the_images(here: Path) -> None:
    photos(here)
    with pytest.raises(UserError, match=r"runs/folder-sage-0 is inside the images folder \.,.*--out"):
        unissl.train(".", steps=1, config={"net": {"name": "small"}})
    assert not (here / "runs").exists()


def test_a_hidden_run_folder_and_one_beside_are_accepted(here: Path) -> None:
    from unissl.data.dataset import DataConfig
    from unissl.data.folder.index import require_out_elsewhere

    data = DataConfig(name="folder", root=str(photos(here / "photos")))
    for out in ("photos/.runs/first", "runs/first", "photos-run", "photos/cat/../../run"):
        require_out_elsewhere(here / out, data)
    require_out_elsewhere(here / "photos" / "run", DataConfig(name="parquet", root=str(here / "photos")))
