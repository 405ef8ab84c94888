"""Machine code in a cache folder that others may write to is not run; it is checked after it is opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from unissl.nets.kernels.code_cache import code_path, read_code, write_code

pytestmark = [pytest.mark.adversary, pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")]
CODE = b"machine code"


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home" / "cache").mkdir(parents=True)
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path / "home" / "cache"))
    path = code_path("source")
    write_code(path, CODE)
    assert read_code(path) == CODE
    return path


@pytest.mark.parametrize("mode", [0o777, 0o775])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_folder_that_others_may_write_to(stored: Path, level: int, mode: int) -> None:
    """The folder of the code, the cache folder, and a folder around it, in which the cache could be exchanged."""
    stored.parents[level].chmod(mode)
    assert read_code(stored) is None


def test_a_shared_folder_where_all_rename_only_their_own(stored: Path) -> None:
    stored.parents[2].chmod(0o1777)
    assert read_code(stored) == CODE


@pytest.mark.parametrize("exchange", [lambda path, other: path.symlink_to(other), lambda path, other: os.mkfifo(path)])
def test_a_link_or_pipe(stored: Path, exchange: Callable[[Path, Path], None]) -> None:
    other = stored.with_name("other")
    stored.rename(other)
    exchange(stored, other)
    assert read_code(stored) is None


def test_the_file_that_is_read_is_the_one_that_is_checked(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is put in place of the file after every look at the path."""
    other = stored.with_name("other")
    stored.rename(other)
    stored.symlink_to(other)
    monkeypatch.setattr("unissl.utils.atomic._check_kind", lambda *arguments: None)
    assert read_code(stored) is None
