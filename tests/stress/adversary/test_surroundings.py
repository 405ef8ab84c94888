"""What surrounds a command: a folder that is gone, a run folder among the images, environment variables."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import unissl
from unissl.cli import main
from unissl.errors import UserError
from unissl.utils.process import misread_variable

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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("report", "run", "--out", "photos/page.png"), "end --out in .html"),
        (("predict", "run", "photos", "--out", "photos/table.png"), "end --out in .csv or .parquet"),
    ],
)
def test_an_output_that_would_pass_for_an_image(
    here: Path, words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    assert end.value.code == 1 and sentence in capsys.readouterr().err


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


@pytest.mark.parametrize(("name", "value"), [("SKLEARN_WORKING_MEMORY", "junk"), ("JOBLIB_MULTIPROCESSING", "")])
def test_a_variable_that_a_library_cannot_read(tmp_path: Path, name: str, value: str) -> None:
    done = run("report", "nowhere", cwd=tmp_path, **{name: value})
    assert done.returncode == 1
    assert done.stderr == f"error: A library cannot read the environment variable {name}; correct or unset it.\n"


def test_a_variable_that_is_a_number_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert misread_variable(KeyError("1")) is None


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--images", "x" * 300, "--out", "run"),
        ("train", "--images", "photos", "--labels", "x" * 300, "--out", "run"),
        ("train", "--data", f"photos/{'x' * 300}", "--out", "run"),
        ("predict", "x" * 300, "photos"),
    ],
)
def test_names_that_are_too_long(here: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    photos(here / "photos")
    with pytest.raises(SystemExit) as end:
        main(list(words))
    printed = capsys.readouterr().err
    assert end.value.code == 1
    assert printed.startswith("error: ") and printed.count("\n") == 1 and "File name too long" in printed


def test_a_disk_that_fails(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("unissl.report.html.write_report", fail)
    with pytest.raises(SystemExit) as end:
        main(["report", "run"])
    assert end.value.code == 1
    assert capsys.readouterr().err == (
        "error: A file or folder cannot be used (Input/output error); check the path and disk.\n"
    )


LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "LOCAL_RANK": "0"}
"""What a scheduler or an earlier torchrun may have left in the environment."""


@pytest.fixture
def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def test_variables_of_torchrun_for_a_command_that_needs_one_process(tmp_path: Path, free_port: str) -> None:
    """The command waited for other processes for a day, deaf to signals."""
    done = run("report", "run", cwd=tmp_path, **LAUNCHED, MASTER_PORT=free_port)
    assert done.returncode == 1
    assert done.stderr == (
        "error: Only `unissl train` runs on several processes; leave out torchrun, or unset RANK and WORLD_SIZE.\n"
    )


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_PORT"])
def test_variables_of_torchrun_that_are_no_numbers(tmp_path: Path, name: str) -> None:
    done = run("train", "--data", "digits", cwd=tmp_path, **(LAUNCHED | {"MASTER_PORT": "1", name: "junk"}))
    assert done.returncode == 1
    assert done.stderr == f"error: ${name} is 'junk', and torchrun sets a number; unset it.\n"


def test_waiting_for_other_processes_ends_at_a_signal(tmp_path: Path, free_port: str) -> None:
    command = [sys.executable, "-m", "unissl", "train", "--data", "digits", "--out", "run"]
    env = {**os.environ, **LAUNCHED, "MASTER_PORT": free_port}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until_listening(int(free_port))
            process.terminate()
            assert process.wait(30) == 75
        finally:
            process.kill()
        assert process.stderr is not None and "stopped by SIGTERM" in process.stderr.read()


def wait_until_listening(port: int) -> None:
    for _ in range(600):
        with socket.socket() as caller:
            if caller.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("nobody listens")
