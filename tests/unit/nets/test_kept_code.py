"""Compiled code survives a process, and damaged files do no harm."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
import torch

from unissl.data.cache import cache_folder
from unissl.nets import kept_code
from unissl.nets.winograd import has_code


def test_what_was_kept_is_recalled_by_all_that_it_depends_on() -> None:
    kept_code.keep(kept_code.place("text", "processor"), b"code")
    assert kept_code.recall(kept_code.place("text", "processor")) == b"code"
    assert kept_code.recall(kept_code.place("text", "another")) is None
    assert kept_code.recall(kept_code.place("textprocessor", "")) is None


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 100])
def test_damaged_files_are_not_believed(damage: bytes) -> None:
    path = kept_code.place("text")
    kept_code.keep(path, b"code")
    path.write_bytes(damage)
    assert kept_code.recall(path) is None
    kept_code.keep(path, b"code")
    assert kept_code.recall(path) == b"code"


def test_a_place_that_cannot_be_written_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path / "file"))
    path = kept_code.place("text")
    kept_code.keep(path, b"code")
    assert kept_code.recall(path) is None


@pytest.mark.skipif(platform.system() != "Linux" or platform.machine() != "x86_64", reason="tried on such systems only")
def test_code_can_be_made_where_we_develop() -> None:
    """Else all tests of it would be skipped, and a fault that turns it off would go unseen."""
    pytest.importorskip("llvmlite", reason="there is no LLVM for this Python")
    assert has_code()


def test_a_second_process_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_code():
        pytest.skip("machine code cannot be made here")
    from unissl.nets import norm_act_code

    x = torch.randn(3, 16, 4, 4).contiguous(memory_format=torch.channels_last)

    def means() -> torch.Tensor:
        norm_act_code.moments.cache_clear()
        table = torch.empty(3, 2, 16)
        norm_act_code.moments(16, 16, torch.float32)(1, 3, x.data_ptr(), table.data_ptr())
        return table[:, 0]

    first = means()
    torch.testing.assert_close(first, x.mean((2, 3)))
    assert len(list((cache_folder() / "code").iterdir())) == 1

    compiled: list[Path] = []
    keep = kept_code.keep
    monkeypatch.setattr(kept_code, "keep", lambda path, made: (compiled.append(path), keep(path, made)))
    assert torch.equal(means(), first)
    assert not compiled
    for path in (cache_folder() / "code").iterdir():
        path.write_bytes(b"damaged")
    assert torch.equal(means(), first)
    assert len(compiled) == 1


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="there are no users")
def test_what_others_could_have_written_is_not_run() -> None:
    path = kept_code.place("text")
    kept_code.keep(path, b"code")
    for at, mode, safe in ((path, 0o620, 0o600), (path, 0o602, 0o600), (path.parent, 0o770, 0o700)):
        at.chmod(mode)
        assert kept_code.recall(path) is None
        at.chmod(safe)
        assert kept_code.recall(path) == b"code"


def test_links_are_neither_written_through_nor_believed(tmp_path: Path) -> None:
    """Code behind a link was chosen by whoever made the link."""
    path = kept_code.place("text")
    kept_code.keep(path, b"code")
    mine = tmp_path / "mine"
    mine.write_bytes(path.read_bytes())
    mine.chmod(0o600)
    before = mine.read_bytes()
    path.unlink()
    path.symlink_to(mine)
    assert kept_code.recall(path) is None
    path.with_name(f".{path.name}.{os.getpid()}.draft").symlink_to(mine)
    kept_code.keep(path, b"other code")
    assert kept_code.recall(path) == b"other code" and not path.is_symlink()
    assert mine.read_bytes() == before


def test_a_linked_folder_is_left_alone(tmp_path: Path) -> None:
    path = kept_code.place("text")
    path.parent.symlink_to(tmp_path)
    kept_code.keep(path, b"code")
    assert kept_code.recall(path) is None and list(tmp_path.iterdir()) == []
