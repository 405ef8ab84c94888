"""SVHN from Matlab files that are written here byte by byte, after Matlab's description of its version 5 format."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from unissl.data import DataConfig, known, load
from unissl.errors import UserError

RNG = np.random.RandomState(0)
PIXELS = {name: RNG.randint(0, 256, (n, 32, 32, 3), dtype=np.uint8) for name, n in
          (("train", 3), ("extra", 4), ("test", 2))}  # fmt: skip
LABELS = {"train": [1, 10, 9], "extra": [5, 10, 2, 1], "test": [10, 3]}


def element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + b"\0" * (-len(content) % 8)


def matrix(name: str, shape: tuple[int, ...], content: bytes) -> bytes:
    """An miMATRIX of class uint8: flags, dimensions, name, data in column-major order."""
    flags = element(6, struct.pack("<II", 9, 0))
    dimensions = element(5, struct.pack(f"<{len(shape)}i", *shape))
    return element(14, flags + dimensions + element(1, name.encode()) + element(2, content))


def packed(variable: bytes) -> bytes:
    squeezed = zlib.compress(variable)
    return struct.pack("<II", 15, len(squeezed)) + squeezed


def mat(*variables: bytes) -> bytes:
    head = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    return head + b"".join(packed(variable) for variable in variables)


def content(pixels: np.ndarray, labels: list[int]) -> bytes:
    """X (32, 32, 3, n): the row runs fastest, then the column, the channel, the image."""
    columns = b"".join(image[:, :, c].T.tobytes() for image in pixels for c in range(3))
    return mat(matrix("X", (32, 32, 3, len(pixels)), columns), matrix("y", (len(labels), 1), bytes(labels)))


def write_all(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, pixels in PIXELS.items():
        (folder / f"{name}_32x32.mat").write_bytes(content(pixels, LABELS[name]))
    return folder


@pytest.fixture
def published(tmp_path: Path, publish: Callable[..., Path]) -> Path:
    for path in write_all(tmp_path).iterdir():
        publish(path)
    return tmp_path


def test_train_and_extra_are_learnt_from(published: Path) -> None:
    dataset = load(DataConfig(name="svhn", root=str(published)))
    assert np.array_equal(dataset.train.images, np.concatenate([PIXELS["train"], PIXELS["extra"]]))
    assert dataset.train.labels.tolist() == [1, 0, 9, 5, 0, 2, 1]  # 10 means 0
    assert dataset.test is not None and np.array_equal(dataset.test.images, PIXELS["test"])
    assert dataset.test.labels.tolist() == [0, 3]
    assert dataset.train.class_names == tuple("0123456789")
    assert dataset.mean == (0.4380, 0.4440, 0.4730) and dataset.std == (0.1751, 0.1771, 0.1744)
    assert dataset.flip and dataset.crop is None


def test_is_read_once_and_then_mapped(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = DataConfig(name="svhn", root=str(published), image_size=16)
    load(config)
    monkeypatch.delattr("unissl.data.sources.svhn.store_blocks")
    dataset = load(config)
    assert isinstance(dataset.train.images, np.memmap) and dataset.train.images.shape == (7, 16, 16, 3)


def test_folders_it_is_searched_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publish: Callable[..., Path]
) -> None:
    with pytest.raises(UserError, match=r"svhn was not found\. .*ufldl\.stanford\.edu.*--root"):
        load(DataConfig(name="svhn"))
    monkeypatch.setenv("UNISSL_DATA", str(tmp_path))
    for path in write_all(tmp_path / "svhn").iterdir():
        publish(path)
    assert {card.name for card in known() if card.present} >= {"svhn"}
    assert len(load(DataConfig(name="svhn")).train) == 7


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (write_all(tmp_path) / "extra_32x32.mat").unlink()
    with pytest.raises(UserError, match=rf"{tmp_path} lacks extra_32x32\.mat of svhn\. Put"):
        load(DataConfig(name="svhn", root=str(tmp_path)))


def test_the_archive_of_whole_photos_is_not_it(tmp_path: Path) -> None:
    """train.tar.gz has whole photos; unpacking it would not help."""
    for name in ("train.tar.gz", "train_32x32.mat"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(UserError, match="is a file; give the folder that holds train_32x32.mat"):
            load(DataConfig(name="svhn", root=str(tmp_path / name)))


@pytest.mark.parametrize("damage", [lambda content: content[:-10], lambda content: b"", lambda content: content + b"!"])
def test_a_file_with_another_checksum_is_not_parsed(
    published: Path, damage: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = published / "extra_32x32.mat"
    path.write_bytes(damage(path.read_bytes()))
    monkeypatch.setattr("scipy.io.loadmat", None)
    with pytest.raises(UserError, match=rf"{path} is not the published extra_32x32\.mat \(its MD5 .*download it again"):
        load(DataConfig(name="svhn", root=str(published)))
