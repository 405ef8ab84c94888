"""What a stranger may have put into a run folder: nothing is written through links, and pipes do not hang."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from method_cases import make_split, make_state

from unissl.data import Dataset
from unissl.data.store import resumable_rows
from unissl.errors import UserError
from unissl.inference.journal import PredictionJournal
from unissl.methods.sage import SAGEConfig
from unissl.plots import charts
from unissl.plots import output as plots
from unissl.run.config import build_config
from unissl.run.cross_validation import cross_validate
from unissl.run.inputs import RunInputs
from unissl.run.lock import NAME, locked
from unissl.run.setup import restore_latest
from unissl.run_folder import RunFolder
from unissl.training import checkpoint
from unissl.training.checkpoint import TrainState
from unissl.types import ImageTable
from unissl.utils import cache
from unissl.utils.atomic import open_regular, write_atomically, write_text
from unissl.utils.row_writer import RowWriter

Place = Callable[[Path], None]
"""Puts something strange there."""


@pytest.fixture
def elsewhere(here: Path) -> Iterator[Path]:
    """A folder of the user's that has nothing to do with the run, and is the same afterwards."""
    place = here / "elsewhere"
    place.mkdir()
    (place / "thesis.tex").write_text("years of work\n")
    (place / ".notes.1.draft").write_text("ideas\n")
    yield place
    assert sorted(path.name for path in place.iterdir()) == [".notes.1.draft", "thesis.tex"]
    assert (place / "thesis.tex").read_text() == "years of work\n"


@pytest.fixture
def folder(here: Path) -> RunFolder:
    made = RunFolder(here / "run")
    made.create()
    made.config.touch()
    return made


@pytest.fixture(params=["link", "link to nothing", "pipe", "socket"])
def strange(request: pytest.FixtureRequest, here: Path, elsewhere: Path) -> Iterator[Place]:
    """What may lie where a file is expected."""
    opened: list[Callable[[], None]] = []

    def put(path: Path) -> None:
        if request.param == "pipe":
            os.mkfifo(path)
            both = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # with both ends open, careless code fails at once
            opened.append(lambda: os.close(both))
        elif request.param == "socket":
            server = socket.socket(socket.AF_UNIX)
            server.bind(str(path.relative_to(here)))  # names of sockets are short
            opened.append(server.close)
        else:
            path.symlink_to(elsewhere / ("thesis.tex" if request.param == "link" else "new"))

    yield put
    for close in opened:
        close()


def refusal(path: Path) -> pytest.RaisesExc[UserError]:
    return pytest.raises(
        UserError, match=rf"{path.name} is (a symbolic link|not a \w+( file)?), .*; put a real .*remove"
    )


def a_state() -> TrainState:
    return make_state(SAGEConfig().for_data(3), make_split(3), net="small")


def test_metrics(folder: RunFolder, strange: Place) -> None:
    strange(folder.metrics)
    with refusal(folder.metrics):
        folder.append_metrics({"step": 1})
    with refusal(folder.metrics):
        folder.remove_partial_files()


def test_metrics_are_not_cut_elsewhere(folder: RunFolder, elsewhere: Path) -> None:
    folder.metrics.symlink_to(elsewhere / "thesis.tex")
    with refusal(folder.metrics):
        folder.cut_metrics(0)
    with refusal(folder.metrics):
        folder.metrics_size()


def test_a_link_put_there_at_the_last_moment(
    folder: RunFolder, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a file and its opening."""
    folder.metrics.symlink_to(elsewhere / "thesis.tex")
    monkeypatch.setattr("unissl.utils.atomic._check_kind", lambda *arguments: None)
    with pytest.raises(UserError, match=os.strerror(errno.ELOOP)):
        folder.append_metrics({"step": 1})


def test_a_pipe_put_there_at_the_last_moment(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder.metrics)
    reader = os.open(folder.metrics, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setattr("unissl.utils.atomic._check_kind", lambda *arguments: None)
    with refusal(folder.metrics):
        folder.append_metrics({"step": 1})
    os.close(reader)


@pytest.mark.parametrize("name", ["checkpoints", "plots", "folds", "baseline"])
def test_folders_inside_are_refused_before_anything_is_done(folder: RunFolder, elsewhere: Path, name: str) -> None:
    (folder.path / name).symlink_to(elsewhere)
    with refusal(folder.path / name), locked(folder):
        pass
    with refusal(folder.path / name):
        restore_latest(folder, a_state(), "hash")


def test_the_folder_itself_may_be_a_link(folder: RunFolder, here: Path) -> None:
    (here / "linked").symlink_to(folder.path)
    linked = RunFolder(here / "linked")
    with locked(linked):
        linked.append_metrics({"step": 1})
        checkpoint.save(linked.checkpoints, a_state(), "hash", 0)
        plots.write_charts(linked.plots, {}, [])
    assert folder.read_metrics() == [{"step": 1}] and len(list(folder.checkpoints.iterdir())) == 1


def test_the_lock(folder: RunFolder, strange: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def acquire(self: FileLock, **options: object) -> None:
        with open(self.lock_file, "w"):  # as versions of filelock did that are old and allowed
            pass

    monkeypatch.setattr(FileLock, "acquire", acquire)
    strange(folder.path / NAME)
    with refusal(folder.path / NAME), locked(folder):
        pass


def test_drafts_are_made_anew_and_what_is_in_place_is_replaced(folder: RunFolder, strange: Place) -> None:
    draft = folder.path / f".summary.json.{os.getpid()}.draft"
    strange(draft)
    strange(folder.summary)
    write_text(folder.summary, "new")
    assert folder.summary.read_text() == "new" and not folder.summary.is_symlink()
    assert not os.path.lexists(draft)


def test_drafts_are_as_readable_as_other_files(folder: RunFolder) -> None:
    (folder.path / "plain").touch()
    write_atomically(folder.summary, lambda draft: None)
    assert folder.summary.stat().st_mode == (folder.path / "plain").stat().st_mode


def test_checkpoints(folder: RunFolder, elsewhere: Path) -> None:
    folder.checkpoints.symlink_to(elsewhere)
    with refusal(folder.checkpoints):
        checkpoint.save(folder.checkpoints, a_state(), "hash", 0)


def test_a_checkpoint_that_is_a_pipe_is_put_aside(folder: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    folder.checkpoints.mkdir()
    path = folder.checkpoints / "step-00000001.safetensors"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, b"\0" * 16)  # so that a careless reader goes on instead of waiting
    assert checkpoint.restore_newest(folder.checkpoints, a_state(), "hash") is None
    os.close(writer)
    assert "was renamed to step-00000001.safetensors.damaged" in caplog.text


def test_an_old_checkpoint_that_cannot_be_removed_is_a_sentence(folder: RunFolder) -> None:
    for step in range(2):
        (folder.checkpoints / f"step-{step:08d}.safetensors").mkdir(parents=True)
    state = a_state()
    state.step = 3
    with pytest.raises(UserError, match="Cannot write"):
        checkpoint.save(folder.checkpoints, state, "hash", 0)


def test_plots(folder: RunFolder, elsewhere: Path) -> None:
    folder.plots.symlink_to(elsewhere)
    with refusal(folder.plots):
        plots.write_charts(folder.plots, {}, [])


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_picture(folder: RunFolder, strange: Place, ending: str) -> None:
    figure, _ = charts.new_figure(1, 1)
    strange(folder.path / f"curve.{ending}")
    written = charts.save(figure, folder.path / "curve")
    assert all(path.is_file() and not path.is_symlink() for path in written)
    assert written[0].read_bytes()[:5] == b"<?xml" and written[1].read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize("name", ["folds", "folds/0"])
def test_refits(folder: RunFolder, elsewhere: Path, name: str) -> None:
    (folder.path / name).parent.mkdir(exist_ok=True)
    (folder.path / name).symlink_to(elsewhere)
    config = build_config({"method": {"name": "labels-only"}, "train": {"steps": 2, "cv_folds": 2}})
    split = make_split(3)
    table = ImageTable(np.zeros((60, 1, 1, 1), np.uint8), np.full(60, -1), ("a", "b", "c"))
    dataset = Dataset("blank", table, None, (0.5,), (0.5,), flip=False)
    inputs = RunInputs(config, dataset, split, torch.device("cpu"), None, None, None)  # type: ignore[arg-type]
    with refusal(folder.path / name):
        cross_validate(folder, inputs)


def test_the_draft_of_predictions(folder: RunFolder, strange: Place, here: Path) -> None:
    folder.manifest.write_text("{}")
    folder.model.write_bytes(b"")
    strange(here / "table.csv.part")
    with refusal(here / "table.csv.part"):
        PredictionJournal(here / "table.csv", folder, ["a.png"], 1, 2)


def test_rows_of_images(strange: Place, here: Path) -> None:
    strange(here / "images.npy")
    with refusal(here / "images.npy"):
        RowWriter(here / "images.npy", (1, 1, 1, 1))
    with refusal(here / "images.npy"):
        cache.save_array(here / "images.npy", np.zeros(1))


def test_marks_of_rows(elsewhere: Path, here: Path) -> None:
    (here / cache.PARTIAL).symlink_to(elsewhere / "thesis.tex")
    with refusal(here / cache.PARTIAL):
        resumable_rows.ResumableRows(here, (1, 1, 1, 1))


class Entry:
    """A cache entry that was built once: its folder, its temporary folder, its lock."""

    def __init__(self) -> None:
        self.built = 0
        self.get()
        (self.final,) = [path for path in cache.cache_folder().iterdir() if path.is_dir()]
        self.temporary, self.lock = (self.final.with_name(f"{self.final.name}.{end}") for end in ("tmp", "lock"))
        shutil.rmtree(self.final)

    def get(self) -> None:
        cache.cached("x", [], {}, self.build)

    def build(self, folder: Path) -> dict[str, object]:
        self.built += 1
        cache.save_array(folder / "labels.npy", np.arange(3))
        return {}


def test_the_temporary_folder_of_a_cache_entry(elsewhere: Path) -> None:
    entry = Entry()
    entry.temporary.symlink_to(elsewhere)
    with refusal(entry.temporary):
        entry.get()
    assert entry.built == 1


def test_a_temporary_folder_that_holds_links_is_not_gone_on_with(elsewhere: Path) -> None:
    entry = Entry()
    entry.temporary.mkdir()
    (entry.temporary / cache.PARTIAL).touch()
    (entry.temporary / "labels.npy").symlink_to(elsewhere / "thesis.tex")
    (entry.temporary / "manifest.json").symlink_to(elsewhere / "new")
    entry.get()
    assert entry.built == 2 and not (entry.final / "manifest.json").is_symlink()


def test_the_place_of_a_cache_entry_is_looked_at_before_it_is_built(elsewhere: Path) -> None:
    entry = Entry()
    entry.final.symlink_to(elsewhere)
    with refusal(entry.final):
        entry.get()
    assert entry.built == 1


def test_the_lock_of_a_cache_entry(elsewhere: Path) -> None:
    entry = Entry()
    entry.lock.unlink(missing_ok=True)
    entry.lock.symlink_to(elsewhere / "thesis.tex")
    with refusal(entry.lock):
        entry.get()


def test_the_manifest_of_a_cache_entry_may_be_a_pipe() -> None:
    entry = Entry()
    entry.get()
    (entry.final / "manifest.json").unlink()
    os.mkfifo(entry.final / "manifest.json")

    def hang(number: int, frame: object) -> None:
        raise AssertionError("waits for the other end of the pipe")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(10)
    try:
        entry.get()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert entry.built == 3


def hard_link(path: Path, target: Path) -> Path:
    path.unlink(missing_ok=True)
    os.link(target, path)
    return path


def test_nothing_is_written_into_a_file_with_a_second_name(folder: RunFolder, elsewhere: Path) -> None:
    """A hard link, as ``cp -al`` makes for every file of a run: the other name would get the changes too."""
    target = elsewhere / "thesis.tex"
    hard_link(folder.metrics, target)
    for change in (lambda: folder.append_metrics({"step": 1}), lambda: folder.cut_metrics(0)):
        with pytest.raises(UserError, match="hard link"):
            change()
    for mode in ("wb", "w+b", "r+b", "ab"):
        with pytest.raises(UserError, match="hard link"):
            open_regular(folder.metrics, mode)
    with open_regular(folder.metrics, "rb") as file:
        assert file.read() == b"years of work\n"


def test_a_lock_with_a_second_name_is_not_emptied(folder: RunFolder, elsewhere: Path) -> None:
    hard_link(folder.path / NAME, elsewhere / "thesis.tex")
    with pytest.raises(UserError, match="hard link"), locked(folder):
        pass
