"""A cache entry is complete or absent, whatever happens while it is built."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unissl.errors import UserError
from unissl.utils import cache
from unissl.utils.cache import Entry, cache_folder, cached
from unissl.utils.row_writer import RowWriter


class Builder:
    """Writes three rows and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> dict[str, Any]:
        self.calls += 1
        with RowWriter(folder / "images.npy", (3, 2, 2, 1)) as writer:
            for row in (2, 0, 1):
                writer.write(row, np.full((2, 2, 1), row, dtype=np.uint8))
        cache.save_array(folder / "labels.npy", np.arange(3))
        return {"class_names": ["a", "b"]}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(b"one")
    return path


def entry_folder() -> Path:
    (folder,) = [path for path in cache_folder().iterdir() if path.is_dir()]
    return folder


def assert_right(entry: Entry) -> None:
    assert entry.arrays["images"][:, 0, 0, 0].tolist() == [0, 1, 2]
    assert entry.arrays["labels"].tolist() == [0, 1, 2]
    assert entry.meta["class_names"] == ["a", "b"]


@pytest.mark.adversary
@pytest.mark.parametrize("old", [False, True])
def test_a_user_without_a_home_is_asked_for_a_folder(old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UNISSL_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # what it does for a user that passwd does not list
    if old:
        monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: f"~/.cache/{name}")
    with pytest.raises(UserError, match=r"no home folder for the cache; set \$UNISSL_CACHE or \$HOME to a folder"):
        cache_folder()


def test_built_once_then_mapped_read_only(source: Path) -> None:
    build = Builder()
    assert_right(cached("x", [source], {}, build))
    entry = cached("x", [source], {}, build)
    assert_right(entry)
    assert build.calls == 1
    assert isinstance(entry.arrays["images"], np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        entry.arrays["images"][0] = 1


def test_manifest_holds_hashes_of_arrays_and_source(source: Path) -> None:
    cached("x", [source], {"size": 2}, Builder())
    folder = entry_folder()
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in ("images.npy", "labels.npy"):
        content = (folder / name).read_bytes()
        facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        assert manifest["files"][name].items() >= facts.items()
    assert manifest["source_sha256"] == {str(source): hashlib.sha256(b"one").hexdigest()}
    assert manifest["settings"] == {"size": 2}


def test_warm_load_hashes_no_large_file(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SMALL_FILE", 10)
    build = Builder()
    cached("x", [source], {}, build)
    monkeypatch.delattr(hashlib, "file_digest")
    assert_right(cached("x", [source], {}, build))


def touch(source: Path) -> None:
    os.utime(source, ns=(1, 1))


def rewrite(source: Path) -> None:
    found = source.stat()
    source.write_bytes(b"longer")
    os.utime(source, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize("change", [touch, rewrite])
def test_changed_source_is_read_again(source: Path, change: Callable[[Path], None]) -> None:
    build = Builder()
    cached("x", [source], {}, build)
    change(source)
    cached("x", [source], {}, build)
    assert build.calls == 2


def test_other_settings_are_another_entry(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = Builder()
    cached("x", [source], {"size": 1}, build)
    cached("x", [source], {"size": 2}, build)
    cached("y", [source], {"size": 2}, build)
    monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    cached("x", [source], {"size": 1}, build)
    assert build.calls == 4


def shorten(folder: Path) -> None:
    os.truncate(folder / "images.npy", 100)


def lengthen(folder: Path) -> None:
    with (folder / "images.npy").open("ab") as file:
        file.write(b"x")


def lose_array(folder: Path) -> None:
    (folder / "labels.npy").unlink()


def lose_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def cut_manifest(folder: Path) -> None:
    os.truncate(folder / "manifest.json", 20)


def empty_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("[]")


def spoil_header(folder: Path) -> None:
    with (folder / "images.npy").open("r+b") as file:
        file.write(b"garbage")


@pytest.mark.parametrize(
    "damage", [shorten, lengthen, lose_array, lose_manifest, cut_manifest, empty_manifest, spoil_header]
)
def test_damaged_entry_is_rebuilt(source: Path, damage: Callable[[Path], None]) -> None:
    build = Builder()
    cached("x", [source], {}, build)
    damage(entry_folder())
    assert_right(cached("x", [source], {}, build))
    assert build.calls == 2
    assert_right(cached("x", [source], {}, build))
    assert build.calls == 2


def test_exception_while_building_leaves_nothing(source: Path) -> None:
    def fail(folder: Path) -> dict[str, Any]:
        Builder()(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached("x", [source], {}, fail)
    assert [path.name for path in cache_folder().iterdir() if path.is_dir()] == []
    assert_right(cached("x", [source], {}, Builder()))


SLOW_BUILD = """
    import sys, time
    from pathlib import Path
    import numpy as np
    from unissl.utils.cache import cached, save_array
    from unissl.utils.row_writer import RowWriter

    def build(folder):
        with RowWriter(folder / "images.npy", (3, 2, 2, 1)) as writer:
            writer.write(0, np.zeros((2, 2, 2, 1), dtype=np.uint8))
            print("building", flush=True)
            time.sleep(float(sys.argv[2]))
            for row in range(3):
                writer.write(row, np.full((2, 2, 1), row, dtype=np.uint8))
        save_array(folder / "labels.npy", np.arange(3))
        return {"class_names": ["a", "b"]}

    cached("x", [sys.argv[1]], {}, build)
"""


@pytest.fixture
def start_builder(source: Path) -> Iterator[Callable[[float], subprocess.Popen[str]]]:
    """Starts a process that is in the midst of building when the call returns."""
    started: list[subprocess.Popen[str]] = []

    def start(seconds: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", textwrap.dedent(SLOW_BUILD), str(source), str(seconds)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "building\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_killed_builder_leaves_nothing_that_is_trusted(
    source: Path, start_builder: Callable[[float], subprocess.Popen[str]]
) -> None:
    process = start_builder(600)
    process.kill()
    process.wait()
    left = entry_folder()
    assert left.name.endswith(".tmp")
    other = source.with_name("other.bin")
    other.write_bytes(b"two")
    assert_right(cached("x", [other], {}, Builder()))  # building anything cleans up after the dead
    assert not left.exists()
    assert_right(cached("x", [source], {}, Builder()))


def test_second_process_waits_and_shares(
    source: Path, start_builder: Callable[[float], subprocess.Popen[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    process = start_builder(2.5)
    other = source.with_name("other.bin")
    other.write_bytes(b"two")
    cached("x", [other], {}, Builder())  # must not take the living builder's folder for an abandoned one
    build = Builder()
    assert_right(cached("x", [source], {}, build))
    assert build.calls == 0
    assert process.wait(timeout=10) == 0
    assert "Waiting for another process" in capfd.readouterr().err


def test_full_disk_is_a_sentence(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(self: RowWriter, row: int, block: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RowWriter, "write", no_space)
    with pytest.raises(UserError, match=r"disk is full .*UNISSL_CACHE") as caught:
        cached("x", [source], {}, Builder())
    assert str(cache_folder()) in str(caught.value)
    assert [path.name for path in cache_folder().iterdir() if path.is_dir()] == []


def test_cache_folder_that_cannot_exist(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISSL_CACHE", str(source / "below-a-file"))
    with pytest.raises(UserError, match=r"cannot be written .*UNISSL_CACHE"):
        cached("x", [source], {}, Builder())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_cache_serves_but_does_not_build(source: Path) -> None:
    cached("x", [source], {}, Builder())
    cache_folder().chmod(0o500)
    try:
        assert_right(cached("x", [source], {}, Builder()))
        with pytest.raises(UserError, match=r"cannot be written .*UNISSL_CACHE"):
            cached("y", [source], {}, Builder())
    finally:
        cache_folder().chmod(0o700)


def test_source_that_is_gone(tmp_path: Path) -> None:
    def read(folder: Path) -> dict[str, Any]:
        return {"content": (tmp_path / "gone.bin").read_text()}

    with pytest.raises(UserError, match=r"gone\.bin cannot be read"):
        cached("x", [tmp_path / "gone.bin"], {}, read)


def test_folder_without_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("UNISSL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_folder().is_relative_to(tmp_path) and cache_folder().name == "unissl"


def test_rows_never_written_are_zero_and_the_file_is_whole(tmp_path: Path) -> None:
    with RowWriter(tmp_path / "a.npy", (4, 2)) as writer:
        writer.write(1, np.array([[1, 2], [3, 4]], dtype=np.uint8))
    assert np.load(tmp_path / "a.npy").tolist() == [[0, 0], [1, 2], [3, 4], [0, 0]]
