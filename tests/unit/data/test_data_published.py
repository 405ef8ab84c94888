"""A download that was damaged without getting shorter."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from unissl.data.sources.checksums import FILES, Published, verify_checksum
from unissl.errors import UserError


def test_a_file_of_the_published_length_must_be_the_published_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = b"what was published"
    monkeypatch.setitem(FILES, "test_y.bin", Published(len(published), hashlib.md5(published).hexdigest()))
    path = tmp_path / "test_y.bin"
    for fine in (published, published[:-1], published + b"!"):  # shorter and longer ones are for the readers to judge
        path.write_bytes(fine)
        verify_checksum(path)
    path.write_bytes(published.replace(b"what", b"that"))
    with pytest.raises(
        UserError, match=rf"{path} is damaged: its MD5 is \w+, and that of the published .* get it anew"
    ):
        verify_checksum(path)
    path.rename(tmp_path / "other.bin")
    verify_checksum(tmp_path / "other.bin")


def test_lengths_are_those_of_the_layout() -> None:
    for part, images in (("train", 5_000), ("test", 8_000), ("unlabeled", 100_000)):
        assert FILES[f"{part}_X.bin"].length == images * 3 * 96 * 96
    assert all(len(bytes.fromhex(published.md5)) == 16 for published in FILES.values())
    assert len({published.md5 for published in FILES.values()}) == len(FILES) == 10


@pytest.mark.parametrize("name", ["train_32x32.mat", "unlabeled_X.bin", "cifar-100-python.tar.gz"])
def test_every_reader_asks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unissl.data import DataConfig, load

    for needed in ("train_32x32.mat", "extra_32x32.mat", "test_32x32.mat", "train_X.bin", "train_y.bin", "test_X.bin",
                   "test_y.bin", "unlabeled_X.bin", "cifar-100-python.tar.gz"):  # fmt: skip
        (tmp_path / needed).write_bytes(b"0123456789")
    monkeypatch.setitem(FILES, name, Published(10, "0" * 32))
    data = {"mat": "svhn", "bin": "stl10", "gz": "cifar100"}[name.rsplit(".", 1)[1]]
    with pytest.raises(UserError, match=rf"{name} is damaged: its MD5"):
        load(DataConfig(name=data, root=str(tmp_path)))
