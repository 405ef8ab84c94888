"""Tables: parquet in the Hugging Face layout, label files, and a folder of images with its names."""

from __future__ import annotations

import io
import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from case import Make, Reader
from mutate import hostile_tree
from PIL import Image

from readers.places import forget_cache, lay
from unissl.data import DataConfig, load
from unissl.data.folder.index import find_images, index_folder
from unissl.data.folder.labels import read_label_file

FEATURES = {"img": {"_type": "Image"}, "label": {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}}


def png(value: int) -> bytes:
    memory = io.BytesIO()
    Image.new("RGB", (4, 4), (value, 7, 9)).save(memory, "PNG")
    return memory.getvalue()


IMAGES = [png(value) for value in (10, 20, 30)]


def parquet(columns: dict[str, Any], metadata: object = None, **how: Any) -> bytes:
    table = pa.table(columns)
    if metadata is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps(metadata)})
    memory = io.BytesIO()
    pq.write_table(table, memory, **how)
    return memory.getvalue()


def image_column(values: list[bytes | None], kind: Any = None) -> Any:
    struct = pa.struct([("bytes", kind or pa.binary()), ("path", pa.string())])
    return pa.array([{"bytes": value, "path": "../../x.png"} for value in values], type=struct)


def good(**how: Any) -> bytes:
    columns = {"img": image_column(IMAGES), "label": pa.array([0, 1, 2])}
    return parquet(columns, {"info": {"features": FEATURES}}, **how)


def hostile_parquet(rng: Random) -> bytes:
    """Well-formed files with columns of the wrong type, labels of any size, names of any kind."""
    labels: list[Any] = [
        pa.array([0, 1, rng.choice((-1, -2, -5, 3, 10**6, 10**12, 2**62))]), pa.array([0, 1, 2], pa.uint8()),
        pa.array([0, None, 1], pa.uint64()), pa.array([2**64 - 1, 0, 1], pa.uint64()), pa.array(["a", "b", "c"]),
        pa.array([0.5, 1, 2]), pa.array([[0], [1], [2]]), pa.array([None] * 3, pa.int64()),
        pa.array([0, 1, 2], pa.int8()), pa.array([0, 1, 2]).dictionary_encode(), pa.array([True, False, True]),
        pa.array([0, 1, 2], pa.timestamp("s")),
    ]  # fmt: skip
    images: list[Any] = [
        image_column(IMAGES), image_column([b"", None, b"\xff"]), image_column(IMAGES, pa.large_binary()),
        pa.array([{"bytes": "/etc/passwd"}] * 3), pa.array([{"bytes": 5}] * 3), pa.array([{"path": "/etc/passwd"}] * 3),
        pa.array(IMAGES), pa.array([{"bytes": [1, 2]}] * 3), image_column([IMAGES[0], None, IMAGES[1]]),
        pa.array([None] * 3, pa.struct([("bytes", pa.binary())])),
    ]  # fmt: skip
    columns = {
        rng.choice(("img", "image", "img", "x")): rng.choice(images),
        rng.choice(("label", "fine_label", "label", "y")): rng.choice(labels),
    }
    metadata: Any = {"info": {"features": FEATURES}}
    if rng.random() < 0.6:
        metadata = hostile_tree(rng, metadata)
    how = {"compression": rng.choice(("snappy", "zstd", "gzip", "none", "lz4", "brotli"))}
    try:
        return parquet(columns, metadata, row_group_size=rng.choice((1, 2, 100)), **how)
    except (pa.ArrowException, ValueError):
        return good()


def parquet_reader(home: Path, name: str, root: str) -> Reader:
    place = lay(home / "data", {"data/train-0.parquet": good(), "data/test-0.parquet": good()})
    target = place / "data" / name

    def read(content: bytes) -> None:
        forget_cache(home)
        target.write_bytes(content)
        load(DataConfig(name="parquet", root=str(place / root)))

    files = [good(compression=kind) for kind in ("none", "snappy", "zstd")] + [good(use_dictionary=False)]
    return Reader(files, read, hostile_parquet, share=0.25)


CSV = [
    b"file,label\na.png,cat\nsub/b.png,dog\nc.png,\n",
    b'\xef\xbb\xbffile;label\r\n"a.png";cat\r\nsub\\b.png;dog\r\n',
    b"a.png\tcat\nsub/b.png\tdog\n",
    "image_path,x,class\nA.PNG,1,Größe\nc,2,käse\n".encode(),
]


def hostile_csv(rng: Random) -> bytes:
    cells = [
        "a.png", "sub/b.png", "c", "../x.png", "/etc/passwd", "sub/../a.png", "..", ".", "", "a.png\0", "/dev/zero",
        "~", "CON", "\\\\host\\share\\a.png", "file:///etc/passwd", "a" * 300, "../" * 40 + "etc/passwd",
        "link.png", "out/x.png", "*",
    ]  # fmt: skip
    labels = ["cat", "dog", "-1", "", "1" * 5000, "=cmd()", "\u202e", "1", "2", "\x1b[31m", "c" * 200_000]
    separator = rng.choice(",;\t")
    rows = [separator.join((rng.choice(cells), rng.choice(labels))) for _ in range(rng.randrange(1, 6))]
    header = rng.choice((f"file{separator}label", f"label{separator}file", "file", f"id{separator}name{separator}y"))
    text = rng.choice(("\n", "\r\n", "\r")).join([header, *rows])
    return text.encode(rng.choice(("utf-8", "utf-8-sig", "utf-16", "utf-8")), "surrogatepass")


def image_folder(home: Path) -> Path:
    place = lay(home / "images", {"a.png": IMAGES[0], "sub/b.png": IMAGES[1], "c.png": IMAGES[2]})
    lay(home / "elsewhere", {"x.png": IMAGES[0]})
    if not (place / "out").exists():
        (place / "out").symlink_to(home / "elsewhere")
        (place / "link.png").symlink_to(home / "elsewhere" / "x.png")
    return place


def label_reader(home: Path, name: str) -> Reader:
    place = image_folder(home)
    listed = find_images(place).files

    def read(content: bytes) -> None:
        (home / name).write_bytes(content)
        for file in read_label_file(home / name, place, listed).labels:
            assert not file.startswith(("/", "..")) and (place / file).is_file(), file
        index_folder(place, str(home / name), None)

    return Reader(CSV, read, hostile_csv, text=True)


def folder_reader(home: Path) -> Reader:
    """The whole of a folder: a labelled image, one of the pool and one whose name says nothing."""
    place = lay(home / "photos", {"cat/a.png": IMAGES[0], "dog/b.png": IMAGES[1], "unlabelled/c.png": IMAGES[2]})

    def read(content: bytes) -> None:
        forget_cache(home)
        (place / "unlabelled" / "d.bin").write_bytes(content)
        (place / "unlabelled" / "e.jpg").write_bytes(content)
        load(DataConfig(name="folder", root=str(place), image_size=8))

    return Reader(IMAGES, read)


READERS: dict[str, Make] = {
    "parquet-file": lambda home: parquet_reader(home, "train-0.parquet", "data/train-0.parquet"),
    "parquet-folder": lambda home: parquet_reader(home, "test-0.parquet", ""),
    "labels-csv": lambda home: label_reader(home, "labels.csv"),
    "labels-tsv": lambda home: label_reader(home, "labels.tsv"),
    "image-folder": folder_reader,
}
