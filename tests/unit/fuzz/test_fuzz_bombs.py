"""Small files that would unpack to gigabytes, and small numbers that stand for huge ones: refused on sight."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from readers.images import chunk
from readers.run_folder import MANIFEST, lay_run
from readers.tables import IMAGES, image_column, parquet

from unissl.config import parse_overrides, read_toml
from unissl.data import DataConfig, from_arrays, load
from unissl.data.images.decode import Unreadable, decode, looks_like_image
from unissl.data.sources import npz as npz_file
from unissl.data.sources.fashion_mnist import read_idx
from unissl.errors import UserError
from unissl.inference.model import load_model
from unissl.splits import read_split
from unissl.utils import parquet_file
from unissl.utils.atomic import read_json


@contextmanager
def little_memory(megabytes: int = 64) -> Iterator[None]:
    """Python, numpy and their buffers stay below this."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes << 20
    finally:
        tracemalloc.stop()


def png(width: int, height: int, *others: bytes) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(others) + data + chunk(b"IEND", b"")


def gif(width: int, height: int) -> bytes:
    screen = struct.pack("<HHBBB", width, height, 0, 0, 0)
    return b"GIF89a" + screen + b",\0\0\0\0" + struct.pack("<HHB", width, height, 0) + b"\2\2L\1\0;"


def bmp(width: int, height: int) -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head


@pytest.mark.parametrize("content", [png(60_000, 60_000), gif(60_000, 60_000), bmp(60_000, 60_000)], ids="pgb")
def test_an_image_of_60000_by_60000_pixels_in_a_few_bytes(content: bytes, tmp_path: Path) -> None:
    assert len(content) < 200
    with little_memory(), pytest.raises(Unreadable, match="more than 100 megapixels"):
        decode(content, 32, 3)
    (tmp_path / "x").write_bytes(content)
    looks_like_image(str(tmp_path / "x"))


def test_text_in_a_png_that_unpacks_to_gigabytes() -> None:
    bomb = zlib.compress(bytes(80 << 20), 9)
    with little_memory(), pytest.raises(Unreadable):
        decode(png(8, 8, *[chunk(b"zTXt", b"key\0\0" + bomb)] * 3), 8, 3)


def test_a_gzipped_idx_file_of_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 2, 2) + bytes(64 << 20), 1))
    with little_memory(8), pytest.raises(UserError, match="announces 8 values and holds more"):
        read_idx(path, 3)
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**20, 2**20, 2**20), 1))
    with little_memory(8), pytest.raises(UserError, match="more than Fashion-MNIST has"):
        read_idx(path, 3)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_parquet_label_of_a_trillion(tmp_path: Path) -> None:
    content = parquet({"img": image_column(IMAGES), "label": pa.array([0, 1, 10**12])})
    with little_memory(), pytest.raises(UserError, match="has the label 1000000000000; number the classes from 0"):
        load(DataConfig(name="parquet", root=str(write(tmp_path / "x.parquet", content))))
    with pytest.raises(UserError, match="number the classes"):
        from_arrays(np.zeros((2, 4, 4), np.uint8), [0, 10**12])


def test_a_parquet_file_of_more_rows_than_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One number over and over: run lengths hold any count of rows in a few bytes."""
    monkeypatch.setattr(parquet_file, "MAX_ROWS", 50_000)
    rows = 50_001
    images = pa.nulls(rows, pa.struct([("bytes", pa.binary())]))
    path = write(tmp_path / "x.parquet", parquet({"img": images, "label": np.zeros(rows, "i1")}))
    assert path.stat().st_size < 2_000
    with little_memory(), pytest.raises(UserError, match="more than 50,000"):
        load(DataConfig(name="parquet", root=str(path)))


def test_parquet_pages_that_announce_gigabytes(tmp_path: Path) -> None:
    content = bytearray(parquet({"img": image_column(IMAGES), "label": pa.array([0, 1, 2])}, compression="none"))
    length = int.from_bytes(content[-8:-4], "little")
    for place in range(len(content) - 8 - length, len(content) - 8, 23):
        damaged = bytearray(content)
        damaged[place : place + 5] = b"\xff\xff\xff\xff\x0f"
        with little_memory():
            try:
                load(DataConfig(name="parquet", root=str(write(tmp_path / "x.parquet", bytes(damaged)))))
            except UserError as error:
                assert "x.parquet" in str(error)


def test_an_npz_file_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    """Its zip directory, or the header of its array, announces more than there is."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (2**40, 3072)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.npy", head.getvalue() + bytes(32 << 20))
    assert (tmp_path / "x.npz").stat().st_size < 100_000
    with little_memory(8), pytest.raises(npz_file.DamagedArray, match="bytes in a file of"):
        npz_file.read_array(tmp_path / "x.npz", "data")


def test_a_split_of_a_quintillion_classes(tmp_path: Path) -> None:
    tree = {
        "format": "unissl-split",
        "version": 1,
        "num_classes": 10**18,
        "labelled": [0],
        "labels": [0],
        "unlabelled": [],
    }
    (tmp_path / "split.json").write_text(json.dumps(tree))
    with little_memory(8), pytest.raises(UserError, match="not the classes"):
        read_split(tmp_path / "split.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"net": "wrn-9999994-1"},
        {"net": "wrn-10-99999"},
        {"net": "wrn-1000-1"},
        {"net": "wrn-28-64"},
        {"net": "resnet-50", "channels": 16, "mean": [0.0] * 16, "std": [1.0] * 16},
        {"method": {"name": "cgmatch", "queue": 2**40}},
        {"method": {"name": "cpg"}, "pool_images": 2**40},
    ],
)
def test_a_manifest_of_a_network_that_no_memory_holds(changes: dict[str, object], tmp_path: Path) -> None:
    folder = lay_run(tmp_path)
    folder.model.write_bytes(b"\2\0\0\0\0\0\0\0{}")
    folder.manifest.write_text(json.dumps(MANIFEST | changes))
    with little_memory(), pytest.raises(UserError):
        load_model(folder)


@pytest.mark.parametrize("read", [read_json, read_toml])
@pytest.mark.parametrize("content", ["[" * 100_000, "a = " + "[" * 100_000, "1" * 10_000, "a = " + "1" * 10_000])
def test_texts_that_parsers_choke_on(read: Callable[[Path], object], content: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not valid"):
        read(write(tmp_path / "x", content.encode()))


def test_overrides_that_parsers_choke_on() -> None:
    with pytest.raises(UserError, match="nested too deep"):
        parse_overrides(["a=" + "[" * 100_000])
    with pytest.raises(UserError, match="digits"):
        parse_overrides(["a=" + "1" * 10_000])
    assert parse_overrides(["a." * 100_000 + "b=1"])


def test_an_endless_device_is_not_read_to_its_end() -> None:
    with little_memory(), pytest.raises(UserError, match="longer than 1 MB"):
        read_toml(Path("/dev/zero"), pipes=True)
