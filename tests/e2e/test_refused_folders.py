"""Folders and checkpoints that cannot be used, and disks that refuse: one sentence, a code, and nothing lost."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch
from cli_helpers import TRAIN_DIGITS, Refuses, call, fill_disk, snapshot, succeed

RUN_WORDS = (*TRAIN_DIGITS, "--set", "train.checkpoint_every=1", "--out", "run")
RESUME = ("train", "--resume", "--no-baseline", "--quiet", "--out", "run")


@pytest.fixture
def finished(here: Path, finished_run: Path) -> Path:
    return Path(shutil.copytree(finished_run, here / "run"))


@pytest.fixture
def cut_off(here: Path, cut_off_run: Path) -> Path:
    return Path(shutil.copytree(cut_off_run, here / "run"))


def newest_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


def test_out_holds_another_run(refuses: Refuses, finished: Path) -> None:
    refuses(*RUN_WORDS, says=("run already holds a run", "choose another --out", "--resume"))


def test_out_is_not_empty(refuses: Refuses, here: Path) -> None:
    (here / "run").mkdir()
    (here / "run" / "letter.txt").write_text("mine")
    refuses(*RUN_WORDS, says=("run is not empty", "choose another --out"))


def test_out_is_a_file(refuses: Refuses, here: Path) -> None:
    (here / "run").write_text("mine")
    refuses(*RUN_WORDS, says=("run is a file", "choose another --out"))


def test_out_lies_below_a_file(refuses: Refuses, here: Path) -> None:
    (here / "file").write_text("mine")
    refuses(*TRAIN_DIGITS, "--out", "file/run", says=("Cannot write file/run", "choose another place with --out"))


@pytest.mark.parametrize("verb", [("demo", "--out", "run", "--steps", "2"), ("demo", "--out", "run")])
def test_demo_into_a_run(refuses: Refuses, finished: Path, verb: tuple[str, ...]) -> None:
    refuses(*verb, says=("run already holds a run", "choose another --out"))


def test_existing_files_are_not_overwritten(refuses: Refuses, finished: Path, here: Path) -> None:
    (here / "file").write_text("mine")
    refuses("split", "--data", "digits", "--out", "file", says=("file exists already", "choose another --out"))
    refuses("predict", "run", "file", "--out", "file", says=("file exists already", "choose another --out"))


@pytest.mark.parametrize("there_already", [False, True])
def test_read_only_folder(refuses: Refuses, here: Path, there_already: bool) -> None:
    locked = here / "run" if there_already else here / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    if os.access(locked, os.W_OK):
        pytest.skip("nothing is read-only to this user")
    out = locked if there_already else locked / "run"
    refuses(*TRAIN_DIGITS, "--out", out, says=("Cannot write", "Permission denied", "another place with --out"))
    locked.chmod(0o755)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_folder_that_the_system_will_not_make(refuses: Refuses, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    make = os.mkdir

    def mkdir(path: str | Path, *rest: object, **options: object) -> None:
        if Path(path).name == "run":
            raise OSError(number, os.strerror(number), str(path))
        make(path, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "mkdir", mkdir)
    refuses(*RUN_WORDS, says=("Cannot write run", os.strerror(number), "choose another place with --out"))


@pytest.mark.parametrize("name", ["config.toml", "split.json"])
def test_full_disk_before_training(refuses: Refuses, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fill_disk(monkeypatch, name)
    refuses(*RUN_WORDS, says=(f"The disk is full at run/{name}", "free some space and repeat the command"))


@pytest.mark.parametrize(
    "name",
    [
        "data_fingerprint.json",
        "step-00000001.safetensors",
        "step-00000002.safetensors",
        "predictions.parquet",
        "summary.json",
    ],
)
def test_full_disk_later_and_on_again(here: Path, finished_run: Path, name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fill_disk(patch, name)
        outcome = call(*RUN_WORDS)
    assert outcome.code == 1
    assert outcome.err.startswith("error: The disk is full at run/") and outcome.err.count("\n") == 1
    assert name in outcome.err and "free some space" in outcome.err and "--resume" in outcome.err
    assert not list(here.rglob("*.draft")) and not (here / "run" / "summary.json").exists()
    succeed(*RESUME)
    same = ("model.safetensors", "predictions.parquet", "split.json", "plots/confusion_matrix.svg")
    ours, theirs = snapshot(here / "run"), snapshot(finished_run)
    assert [ours[file] for file in same] == [theirs[file] for file in same]


def test_full_disk_when_data_are_flushed(here: Path, cut_off: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(here)

    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    outcome = call(*RESUME)
    assert outcome.code == 1 and outcome.err.startswith("error: The disk is full at run/")
    assert snapshot(here) == before


def test_full_disk_while_predicting(here: Path, finished: Path) -> None:
    """What was predicted is kept, and the same command goes on with it."""
    from PIL import Image

    Image.new("L", (8, 8)).save("one.png")
    words = ("predict", "run", "one.png", "--out", "table.csv")
    with pytest.MonkeyPatch.context() as patch:
        fill_disk(patch, "table.csv")
        outcome = call(*words)
    assert outcome.code == 1 and outcome.err.startswith("error: The disk is full at table.csv; free some space")
    assert (here / "table.csv.part").exists() and not (here / "table.csv").exists()
    assert "resuming after 1 of 1 files" in succeed(*words).err
    assert (here / "table.csv").exists() and not (here / "table.csv.part").exists()


def test_resume_without_out(refuses: Refuses) -> None:
    refuses("train", "--resume", says=("To resume a run, name its folder: --out",))


def test_resume_with_a_recipe(refuses: Refuses, cut_off: Path) -> None:
    refuses(*RESUME, "--recipe", "paper", says=("takes its configuration from its folder", "leave out the recipe"))


@pytest.mark.parametrize("there", [False, True])
def test_resume_where_there_is_no_run(refuses: Refuses, here: Path, there: bool) -> None:
    if there:
        (here / "run").mkdir()
    refuses(*RESUME, says=("run holds no run to resume", "leave out --resume"))


@pytest.mark.parametrize(
    ("extra", "change"),
    [
        (("--steps", "5"), "train.steps: 2 -> 5"),
        (("--seed", "1"), "seed: 0 -> 1"),
        (("--method", "fixmatch"), "method.name: sage -> fixmatch"),
        (("--set", "method.form=paper"), "method.form: consensus -> paper"),
        (("--set", "optim.lr=1.5"), "optim.lr: 0.03 -> 1.5"),
    ],
)
def test_resume_with_another_configuration(
    refuses: Refuses, cut_off: Path, extra: tuple[str, ...], change: str
) -> None:
    says = ("was started with another configuration", change, "choose another --out")
    refuses(*RESUME, *extra, says=says)


def test_resume_after_the_config_file_was_edited(refuses: Refuses, cut_off: Path) -> None:
    config = cut_off / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.03", "lr = 0.3"))
    refuses(*RESUME, says=("belongs to a run with another configuration", "use the folder it came from"))


def test_resume_with_another_data_set_behind_the_split(refuses: Refuses, cut_off: Path) -> None:
    split = cut_off / "split.json"
    split.write_text(split.read_text().replace('"labels": [', '"labels": [5, ', 1))
    refuses(*RESUME, says=("split.json cannot be used as a split", "41 labels"))


@pytest.mark.parametrize("kind", ["truncated", "flipped bit", "text", "pickle", "weights alone"])
def test_a_spoilt_checkpoint_is_passed_over(cut_off: Path, finished_run: Path, kind: str) -> None:
    newest = newest_checkpoint(cut_off)
    content = newest.read_bytes()
    if kind == "truncated":
        newest.write_bytes(content[:-100])
    elif kind == "flipped bit":
        newest.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif kind == "text":
        newest.write_text("hello")
    elif kind == "pickle":
        torch.save({"model": torch.zeros(3)}, newest)
    else:
        shutil.copy(finished_run / "model.safetensors", newest)
    spoilt = newest.read_bytes()
    errors = succeed(*RESUME).err
    assert f"{newest} is not an intact checkpoint" in errors.replace("run/", f"{cut_off}/")
    assert "training continues from the checkpoint before, step-00000001" in errors
    assert newest.with_name(f"{newest.name}.damaged").read_bytes() == spoilt
    assert (cut_off / "model.safetensors").read_bytes() == (finished_run / "model.safetensors").read_bytes()


def test_no_checkpoint_is_intact(cut_off: Path, finished_run: Path) -> None:
    for path in (cut_off / "checkpoints").iterdir():
        path.write_bytes(b"")
    assert "no intact checkpoint is left; training starts from the beginning" in succeed(*RESUME).err
    assert (cut_off / "model.safetensors").read_bytes() == (finished_run / "model.safetensors").read_bytes()


def test_the_checkpoint_of_another_run(refuses: Refuses, cut_off: Path, here: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fill_disk(patch, "model.safetensors")
        call(*TRAIN_DIGITS, "--seed", "7", "--out", here / "other")
    newest = newest_checkpoint(cut_off)
    shutil.copy(newest_checkpoint(here / "other"), newest)
    refuses(*RESUME, says=(newest.name, "another configuration"))


@pytest.mark.parametrize("words", [("evaluate", "run"), ("predict", "run", "x.png")])
def test_run_without_a_model(refuses: Refuses, cut_off: Path, words: tuple[str, ...]) -> None:
    refuses(*words, says=("run holds no trained model", "finished run"))


def test_damaged_model(refuses: Refuses, finished: Path) -> None:
    (finished / "model.safetensors").write_bytes(b"hello")
    refuses("evaluate", "run", says=("model.safetensors is damaged", "train again"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("predict", "run", "nowhere"), ("There is no file or folder nowhere", "check the path")),
        (("predict", "run", "run/checkpoints"), ("holds no images",)),
        (("predict", "run", "run", "--out", "no/such/table.csv"), ("Cannot write no/such/table.csv", "--out")),
        (("evaluate", "run", "--test", "nowhere"), ("There is no folder nowhere", "check the path")),
        (("split", "--data", "digits", "--out", "no/split.json"), ("Cannot write no/split.json", "--out")),
    ],
)
def test_paths_that_lead_nowhere(
    refuses: Refuses, finished: Path, words: tuple[str, ...], says: tuple[str, ...]
) -> None:
    refuses(*words, says=says)


def test_a_name_that_is_too_long(refuses: Refuses) -> None:
    refuses(*TRAIN_DIGITS, "--out", "x" * 300, says=("File name too long", "--out"))


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX only")
def test_a_folder_whose_name_is_not_unicode(here: Path) -> None:
    out = os.fsdecode(b"run\xff")
    succeed(*TRAIN_DIGITS, "--out", out)
    succeed("report", out)
