"""Fashion-MNIST, from idx files written byte by byte as in the format's description."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from unissl.data import DataConfig, known, load
from unissl.data.sources import fashion_mnist as idx
from unissl.errors import UserError

PIXELS = np.random.RandomState(0).randint(0, 256, (12, 28, 28), dtype=np.uint8)
LABELS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 0]


def image_bytes(pixels: np.ndarray) -> bytes:
    return struct.pack(">IIII", 0x00000803, len(pixels), 28, 28) + pixels.tobytes()


def label_bytes(labels: list[int]) -> bytes:
    return struct.pack(">II", 0x00000801, len(labels)) + bytes(labels)


def pack(content: bytes) -> bytes:
    """Gzip without the time of day, which would give every process that collects the tests other names for them."""
    return gzip.compress(content, mtime=0)


def write_all(folder: Path, pack: Callable[[bytes], bytes] = gzip.compress, suffix: str = ".gz") -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"train-images-idx3-ubyte{suffix}").write_bytes(pack(image_bytes(PIXELS)))
    (folder / f"train-labels-idx1-ubyte{suffix}").write_bytes(pack(label_bytes(LABELS)))
    (folder / f"t10k-images-idx3-ubyte{suffix}").write_bytes(pack(image_bytes(PIXELS[:3])))
    (folder / f"t10k-labels-idx1-ubyte{suffix}").write_bytes(pack(label_bytes(LABELS[:3])))
    return folder


@pytest.fixture
def no_debian(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(idx, "DEBIAN_FOLDER", tmp_path / "debian")


def config(folder: Path, size: int | None = None) -> DataConfig:
    return DataConfig(name="fashion-mnist", root=str(folder), image_size=size)


@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (bytes, "")])
def test_reads_packed_and_plain_files(tmp_path: Path, pack: Callable[[bytes], bytes], suffix: str) -> None:
    dataset = load(config(write_all(tmp_path, pack, suffix)))
    assert dataset.name == "fashion-mnist" and dataset.flip
    assert np.array_equal(dataset.train.images, PIXELS[..., None])
    assert dataset.train.labels.tolist() == LABELS
    assert dataset.test is not None and np.array_equal(dataset.test.images, PIXELS[:3, ..., None])
    assert dataset.train.class_names[9] == "Ankle boot" and dataset.train.num_classes == 10
    assert dataset.mean == (round(float((PIXELS / 255).mean()), 4),)
    assert dataset.std == (round(float((PIXELS / 255).std()), 4),)


def test_size_scales(tmp_path: Path) -> None:
    dataset = load(config(write_all(tmp_path), size=32))
    assert dataset.train.images.shape == (12, 32, 32, 1)
    assert dataset.test is not None and dataset.test.images.shape == (3, 32, 32, 1)


@pytest.mark.usefixtures("no_debian")
def test_places_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def present() -> bool:
        return {card.name: card.present for card in known()}["fashion-mnist"]

    assert not present()
    with pytest.raises(UserError, match=r"dataset-fashion-mnist.*--root"):
        load(DataConfig(name="fashion-mnist"))
    monkeypatch.setenv("UNISSL_DATA", str(tmp_path))
    write_all(tmp_path / "fashion-mnist")
    assert present()
    assert len(load(DataConfig(name="fashion-mnist")).train) == 12
    monkeypatch.delenv("UNISSL_DATA")
    write_all(tmp_path / "debian")
    assert present()
    with pytest.raises(UserError, match="nothing in"):  # a root that is named is the only place
        load(config(tmp_path / "elsewhere"))


def test_missing_one_of_four(tmp_path: Path) -> None:
    write_all(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match="was not found"):
        load(config(tmp_path))


IMAGES, LABEL_FILE = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (IMAGES, pack(label_bytes(LABELS)), "is not an idx file of 3-dimensional"),
        (IMAGES, pack(b"\0\0\x0d\x03" + image_bytes(PIXELS)[4:]), "is not an idx file"),
        (IMAGES, b"", "is not an idx file"),
        (IMAGES, pack(image_bytes(PIXELS)[:10]), "ends within its header"),
        (IMAGES, pack(image_bytes(PIXELS)[:-1]), "announces 9408 values and holds 9407"),
        (IMAGES, pack(image_bytes(PIXELS) + b"x"), "announces 9408 values and holds more"),
        (IMAGES, pack(image_bytes(PIXELS))[:-200], "damaged gzip"),
        (IMAGES, b"\x1f\x8b\x08" + b"\0" * 50, "damaged gzip"),
        (LABEL_FILE, pack(label_bytes(LABELS[:-1])), "holds 12 images and .* 11 labels"),
        (LABEL_FILE, pack(label_bytes([10] * 12)), "does not hold Fashion-MNIST labels"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    write_all(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence) as caught:
        load(config(tmp_path))
    assert name in str(caught.value)
