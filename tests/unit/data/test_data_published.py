"""Published checksums, and the note for a data set that is not complete."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from unissl.data import DataConfig, load
from unissl.data.sources import stl10
from unissl.data.sources.checksums import MD5, report_partial, require_checksum
from unissl.errors import UserError


def test_only_the_published_bytes_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, published = tmp_path / "renamed", b"what was published"
    monkeypatch.setitem(MD5, "test_y.bin", hashlib.md5(published).hexdigest())
    path.write_bytes(published)
    require_checksum(path, "test_y.bin")
    for content in (published[:-1], published + b"!", published.replace(b"what", b"that")):
        path.write_bytes(content)
        with pytest.raises(
            UserError, match=rf"{path} is not the published test_y\.bin \(its MD5 is .*download it again"
        ):
            require_checksum(path, "test_y.bin")


def test_checksums_are_digests_of_different_files() -> None:
    assert all(len(bytes.fromhex(digest)) == 16 for digest in MD5.values())
    assert len(set(MD5.values())) == len(MD5) == 20


@pytest.mark.parametrize("name", ["train_X.bin", "train_y.bin"])
def test_stl10_of_the_published_length_must_have_the_checksum(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("train", "test", "unlabeled"):
        (tmp_path / f"{part}_X.bin").write_bytes(bytes(stl10.BYTES))
        (tmp_path / f"{part}_y.bin").write_bytes(b"\1")
        for file in (f"{part}_X.bin", f"{part}_y.bin"):
            monkeypatch.setitem(MD5, file, hashlib.md5((tmp_path / file).read_bytes()).hexdigest())
    monkeypatch.setattr(stl10, "IMAGES", {"train": 1, "test": 8000, "unlabeled": 100_000})
    monkeypatch.setitem(MD5, name, "0" * 32)
    with pytest.raises(UserError, match=rf"{name} is not the published {name}"):
        load(DataConfig(name="stl10", root=str(tmp_path)))


def test_an_incomplete_data_set_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    report_partial("stl10", "images in train_X.bin", 5000, 5000)
    assert not capsys.readouterr().err
    report_partial("stl10", "images in train_X.bin", 20, 5000)
    assert capsys.readouterr().err == "Note: stl10 is published with 5000 images in train_X.bin, found 20.\n"
