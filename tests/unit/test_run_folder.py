"""The run folder: nothing half-written, nothing overwritten, lines cut where the checkpoint says."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from unissl.errors import UserError
from unissl.run_folder import RunFolder
from unissl.utils.atomic import explain_disk_errors, read_json, write_atomically, write_json, write_text


def test_a_failing_writer_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_text(path, "old")

    def fails_half_way(draft: Path) -> None:
        draft.write_text("ne")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        write_atomically(path, fails_half_way)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["summary.json"]


def test_the_new_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_text(path, "old")

    def looks_around(draft: Path) -> None:
        draft.write_text("new")
        assert path.read_text() == "old"

    write_atomically(path, looks_around)
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["summary.json"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "disk is full at .*; free some space"),
        (errno.EACCES, r"Cannot write .* \(Permission denied\); choose another"),
    ],
)
def test_what_a_disk_refuses_is_a_sentence(number: int, words: str, tmp_path: Path) -> None:
    def refused(draft: Path) -> None:
        raise OSError(number, "refused")

    with pytest.raises(UserError, match=words):
        write_atomically(tmp_path / "x", refused)


def test_errors_that_are_not_the_system_s_stay_what_they_are() -> None:
    with pytest.raises(OSError, match="broken"), explain_disk_errors(Path("x")):
        raise OSError("broken")


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    RunFolder(tmp_path / "new").check_unused()
    RunFolder(tmp_path).check_unused()
    (tmp_path / ".DS_Store").touch()
    RunFolder(tmp_path).check_unused()
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"is not empty; choose another --out"):
        RunFolder(tmp_path).check_unused()
    (tmp_path / "config.toml").touch()
    with pytest.raises(UserError, match=r"already holds a run; .* --resume"):
        RunFolder(tmp_path).check_unused()
    with pytest.raises(UserError, match="is a file"):
        RunFolder(tmp_path / "thesis.tex").check_unused()


def test_metrics_are_cut_to_the_bytes_of_the_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.metrics_size() == 0 and folder.read_metrics() == []
    folder.cut_metrics(0)
    folder.append_metrics({"step": 1})
    size = folder.metrics_size()
    folder.append_metrics({"step": 2})
    with folder.metrics.open("a") as handle:
        handle.write('{"step": 3, "lo')  # the process was killed here
    folder.cut_metrics(size)
    assert folder.read_metrics() == [{"step": 1}]
    folder.append_metrics({"step": 2})
    assert folder.read_metrics() == [{"step": 1}, {"step": 2}]
    with pytest.raises(UserError, match="has lost lines"):
        folder.cut_metrics(folder.metrics_size() + 1)


def test_reading_json(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    with pytest.raises(UserError, match="is missing"):
        read_json(path)
    write_json(path, {"last": 0.5})
    assert read_json(path) == {"last": 0.5}
    path.write_text('{"last": 0.')
    with pytest.raises(UserError, match="not valid JSON"):
        read_json(path)


def test_what_a_folder_says_of_itself(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a" / "b")
    folder.create()
    assert not folder.holds_run and not folder.finished
    folder.config.touch()
    folder.summary.touch()
    assert folder.holds_run and folder.finished


def test_drafts_of_a_killed_process_are_cleared_away(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.checkpoints.mkdir()
    drafts = [tmp_path / ".summary.json.1.draft", folder.checkpoints / ".step-00000001.safetensors.1.draft"]
    for path in [*drafts, folder.config]:
        path.touch()
    folder.remove_partial_files()
    assert [path.exists() for path in [*drafts, folder.config]] == [False, False, True]
