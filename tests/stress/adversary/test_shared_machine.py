"""Nothing in a cache that others may write to is used: machine code is not run, images and features are not read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unissl.errors import UserError
from unissl.utils import ownership
from unissl.utils.cache import cached, save_array
from unissl_kernels.code_cache import code_path, read_code, write_code

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


class Images:
    """Counts how often the entry is built."""

    def __init__(self) -> None:
        self.builds = 0

    def __call__(self, folder: Path) -> dict[str, Any]:
        self.builds += 1
        save_array(folder / "images.npy", np.arange(9))
        return {}


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Images:
    """Built in home/cache, with the least restrictive umask."""
    (tmp_path / "home").mkdir(mode=0o700)
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path / "home" / "cache"))
    build, before = Images(), os.umask(0)
    try:
        cached("images", [], {}, build)
    finally:
        os.umask(before)
    cached("images", [], {}, build)
    assert build.builds == 1
    return build


@pytest.mark.parametrize("name", ["home", "home/cache"])
def test_images_in_a_folder_that_others_may_write_to(tmp_path: Path, images: Images, name: str) -> None:
    (tmp_path / name).chmod(0o777)
    sentence = rf"Other users may write to {tmp_path / name}, so the image cache .* chmod go-w, or set \$UNISSL_CACHE"
    with pytest.raises(UserError, match=sentence):
        cached("images", [], {}, images)


def test_a_new_cache_in_a_folder_that_others_may_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path / "cache"))
    build = Images()
    with pytest.raises(UserError, match="Other users may write to"):
        cached("images", [], {}, build)
    assert build.builds == 0


@pytest.mark.parametrize("alone", [True, False])
def test_a_group_may_write_only_if_it_has_no_other_members(
    tmp_path: Path, images: Images, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    monkeypatch.setattr(ownership, "_has_no_other_members", lambda gid: alone)
    (tmp_path / "home").chmod(0o770)
    if alone:
        cached("images", [], {}, images)
        assert images.builds == 1
    else:
        with pytest.raises(UserError, match="Other users may write to"):
            cached("images", [], {}, images)


@pytest.mark.parametrize("name", ["images.npy", "."])
def test_an_entry_that_others_may_write_to_is_built_again(tmp_path: Path, images: Images, name: str) -> None:
    (entry,) = (tmp_path / "home" / "cache").glob("images-*/")
    (entry / name).chmod(0o777)
    cached("images", [], {}, images)
    assert images.builds == 2
    cached("images", [], {}, images)
    assert images.builds == 2
