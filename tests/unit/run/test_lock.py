"""One process at a time in a run folder, and none that is dead."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from unissl.errors import UserError
from unissl.run.lock import NAME, locked
from unissl.run_folder import RunFolder

HOLD = """
import sys, time, filelock
lock = filelock.FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.create()
    made.config.write_text("")
    return made


def test_the_second_refuses(folder: RunFolder) -> None:
    refusal = pytest.raises(UserError, match=r"Another process is using .*run; wait for it, or choose another --out")
    with locked(folder), refusal, locked(folder):
        pass
    with locked(folder):
        pass


def test_a_killed_process_holds_nothing(folder: RunFolder) -> None:
    command = [sys.executable, "-c", HOLD, str(folder.path / NAME)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="Another process"), locked(folder):
            pass
        process.kill()
        process.wait()
        with locked(folder):
            pass


def test_where_nothing_was_begun_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), locked(RunFolder(tmp_path / "new")):
        raise KeyboardInterrupt
    (tmp_path / "old").mkdir()
    with locked(RunFolder(tmp_path / "old")):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["old"] and not list((tmp_path / "old").iterdir())


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_cannot_be_written(folder: RunFolder, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def acquire(self: FileLock, **options: Any) -> None:
        raise OSError(number, os.strerror(number), self.lock_file)

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with pytest.raises(UserError, match=r"run/\.lock"), locked(folder):
        pass


def test_a_file_system_without_locks(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker file takes the place of the lock, and goes when the holder does."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(folder), pytest.raises(UserError, match="Another process"), locked(folder):
        pass
    with locked(folder):
        pass


def test_a_new_folder_that_cannot_be_locked_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def acquire(self: FileLock, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with pytest.raises(UserError, match="No space left"), locked(RunFolder(tmp_path / "run")):
        pass
    assert list(tmp_path.iterdir()) == []
