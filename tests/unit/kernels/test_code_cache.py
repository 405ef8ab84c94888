"""Compiled code survives a process, and damaged files do no harm."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
import torch

from unissl.utils.cache import cache_folder
from unissl_kernels import code_cache
from unissl_kernels.winograd import forward, kernels_available


def test_what_was_kept_is_recalled_by_all_that_it_depends_on() -> None:
    code_cache.write_code(code_cache.code_path("text", "processor"), b"code")
    assert code_cache.read_code(code_cache.code_path("text", "processor")) == b"code"
    assert code_cache.read_code(code_cache.code_path("text", "another")) is None
    assert code_cache.read_code(code_cache.code_path("textprocessor", "")) is None


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 100])
def test_damaged_files_are_not_believed(damage: bytes) -> None:
    path = code_cache.code_path("text")
    code_cache.write_code(path, b"code")
    path.write_bytes(damage)
    assert code_cache.read_code(path) is None
    code_cache.write_code(path, b"code")
    assert code_cache.read_code(path) == b"code"


def test_a_place_that_cannot_be_written_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path / "file"))
    path = code_cache.code_path("text")
    code_cache.write_code(path, b"code")
    assert code_cache.read_code(path) is None


@pytest.mark.skipif(platform.system() != "Linux" or platform.machine() != "x86_64", reason="tried on such systems only")
def test_code_can_be_made_where_we_develop() -> None:
    """Else all tests of it would be skipped, and a fault that turns it off would go unseen."""
    pytest.importorskip("llvmlite", reason="there is no LLVM for this Python")
    assert kernels_available()


def test_a_second_process_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernels_available():
        pytest.skip("kernels cannot be compiled here")
    from unissl_kernels import winograd_ir

    x, weight = torch.randn(3, 16, 4, 4).contiguous(memory_format=torch.channels_last), torch.randn(16, 16, 3, 3)

    def convolved() -> torch.Tensor:
        winograd_ir.forward.cache_clear()
        return forward(x, weight)

    first = convolved()
    torch.testing.assert_close(first, torch.conv2d(x, weight, padding=1), rtol=1e-3, atol=1e-3)
    assert len(list((cache_folder() / "code").iterdir())) == 1

    compiled: list[Path] = []
    write_code = code_cache.write_code
    monkeypatch.setattr(code_cache, "write_code", lambda path, code: (compiled.append(path), write_code(path, code)))
    assert torch.equal(convolved(), first)
    assert not compiled
    for path in (cache_folder() / "code").iterdir():
        path.write_bytes(b"damaged")
    assert torch.equal(convolved(), first)
    assert len(compiled) == 1


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="there are no users")
def test_what_others_could_have_written_is_not_run() -> None:
    path = code_cache.code_path("text")
    code_cache.write_code(path, b"code")
    for at, mode, safe in ((path, 0o620, 0o600), (path, 0o602, 0o600), (path.parent, 0o770, 0o700)):
        at.chmod(mode)
        assert code_cache.read_code(path) is None
        at.chmod(safe)
        assert code_cache.read_code(path) == b"code"


def test_links_are_neither_written_through_nor_believed(tmp_path: Path) -> None:
    """Code behind a link was chosen by whoever made the link."""
    path = code_cache.code_path("text")
    code_cache.write_code(path, b"code")
    mine = tmp_path / "mine"
    mine.write_bytes(path.read_bytes())
    mine.chmod(0o600)
    before = mine.read_bytes()
    path.unlink()
    path.symlink_to(mine)
    assert code_cache.read_code(path) is None
    path.with_name(f".{path.name}.{os.getpid()}.draft").symlink_to(mine)
    code_cache.write_code(path, b"other code")
    assert code_cache.read_code(path) == b"other code" and not path.is_symlink()
    assert mine.read_bytes() == before


def test_a_linked_folder_is_left_alone(tmp_path: Path) -> None:
    path = code_cache.code_path("text")
    path.parent.symlink_to(tmp_path)
    code_cache.write_code(path, b"code")
    assert code_cache.read_code(path) is None and list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="needs a umask")
def test_code_is_found_again_under_a_umask_that_lets_the_group_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that the group may write to would not be trusted, and the code compiled again in every process."""
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path / "cache"))
    before = os.umask(0o002)
    try:
        path = code_cache.code_path("source", "processor")
        code_cache.write_code(path, b"code")
    finally:
        os.umask(before)
    assert code_cache.read_code(path) == b"code"
