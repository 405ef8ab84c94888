"""Data sets in archives: CIFAR's pickles and tar files, Fashion-MNIST's idx files, and arrays of our own cache."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import pickletools
import struct
import tarfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from case import Make, Reader
from mutate import EXTREMES, hostile_tree, mutated

from readers.places import forget_cache, lay
from unissl.data import DataConfig, load
from unissl.data.formats.batch_pickle import read_batch
from unissl.utils.cache import cached

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def batch(rows: int, protocol: int) -> bytes:
    data = np.random.RandomState(rows).randint(0, 256, (rows, 3072), dtype=np.uint8)
    value = {b"batch_label": b"a batch", b"labels": list(range(rows)), b"data": data, b"filenames": [b"a.png"] * rows}
    return pickle.dumps(value, protocol=protocol)


def cifar_files(rows: int = 2) -> dict[str, bytes]:
    files = {f"data_batch_{i}": batch(rows, 2) for i in range(1, 6)}
    return {**files, "test_batch": batch(1, 2), "batches.meta": pickle.dumps({b"label_names": NAMES}, protocol=2)}


class Runs:
    """Pickles into an instruction to call something."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.reduced = call, arguments

    def __reduce__(self) -> Any:
        return self.reduced


def hostile_pickle(rng: Random) -> bytes:
    """Programs that call, remember at far places, nest, refer to themselves, or make arrays of any shape and type."""
    what, protocol = rng.randrange(9), rng.randrange(6)
    if what == 0:
        calls = [Runs(os.system, "touch /tmp/fuzz-canary"), Runs(eval, "1"), Runs(os.abort), Runs(open, "/tmp/x", "w")]
        return pickle.dumps({b"data": rng.choice(calls), b"labels": [0]}, protocol=protocol)
    if what == 1:
        return b"\x80\x02}r" + struct.pack("<I", rng.choice(EXTREMES) % 2**32) + b"."
    if what == 2:
        return (
            b"\x80\x02" + rng.choice((b"]", b"(", b"}", b")", b"(l", b"]q\x00h\x00a")) * rng.randrange(1, 5000) + b"."
        )
    if what == 3:
        head = rng.choice((b"\x8e", b"\x8d", b"\x95")) + struct.pack("<Q", rng.choice(EXTREMES) % 2**64)
        return b"\x80\x04" + head + b"abc."
    if what == 4:
        dtypes = ["u1", "O", "f8", "i8", "V8", "S100", "M8[ns]", "u1,u1"]
        shape = rng.choice(((), (2,), (2, 3072), (0, 3072), (2, 2, 2), (1, 1, 1, 1, 1), (3072, 2)))
        return pickle.dumps({b"data": np.zeros(shape, rng.choice(dtypes)), b"labels": [0]}, protocol=2)
    if what == 5:
        values = [
            [0, 1],
            [True, False],
            [10**30, 1],
            [[0], [1]],
            [None, 0],
            "01",
            (0, 1),
            {0: 1},
            [0.0, 1.0],
            [-1, 2**40],
        ]
        value = {b"data": np.zeros((2, 3072), np.uint8), b"labels": rng.choice(values)}
        return pickle.dumps(value, protocol=rng.randrange(5))
    if what == 6:
        nested: Any = []
        for _ in range(rng.choice((2, 30, 60))):
            nested = [nested, nested]
        return pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": nested}, protocol=2)
    if what == 7:
        codes = [code.code.encode("latin-1") for code in pickletools.opcodes]
        return b"\x80\x04" + b"".join(rng.choice(codes) + rng.randbytes(rng.randrange(4)) for _ in range(30)) + b"."
    value = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1]}
    state = pickle.dumps(value, protocol=2)
    return state.replace(b"M\x00\x0c", b"J" + struct.pack("<i", rng.choice((-1, 2**31 - 1, 0, 6144))))


def cifar_pickle(home: Path) -> Reader:
    place = lay(home / "batches", cifar_files())

    def read(content: bytes) -> None:
        forget_cache(home)
        (place / "data_batch_3").write_bytes(content)
        load(DataConfig(name="cifar10", root=str(place)))

    files = [batch(2, protocol) for protocol in range(5)]
    return Reader(files, read, hostile_pickle)


def cifar_names(home: Path) -> Reader:
    """The pickle of class names by itself, without the images around it."""
    place = lay(home / "batches", cifar_files(1))

    def read(content: bytes) -> None:
        forget_cache(home)
        (place / "batches.meta").write_bytes(content)
        load(DataConfig(name="cifar10", root=str(place)))

    def hostile(rng: Random) -> bytes:
        tree = hostile_tree(rng, {"label_names": NAMES, "num_vis": 3072})
        try:
            return pickle.dumps(tree, protocol=rng.randrange(5))
        except UnicodeEncodeError:
            return hostile_pickle(rng)

    return Reader([cifar_files()["batches.meta"]], read, hostile)


def any_pickle(home: Path) -> Reader:
    """The reader of pickles without its surroundings."""
    values = [{b"a": 1, "b": [1, 2.5, None], b"c": b"\xff"}, {b"data": np.arange(6, dtype=np.uint8)}, {}]
    files = [pickle.dumps(value, protocol=protocol) for value in values for protocol in range(5)]
    return Reader(files, lambda content: read_batch(io.BytesIO(content), "batch"), hostile_pickle)


def tar(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as archive:
        for member, content in members:
            archive.addfile(member, io.BytesIO(content))
    return memory.getvalue()


def plain_members(rows: int = 1) -> list[tuple[tarfile.TarInfo, bytes]]:
    members = []
    for name, content in cifar_files(rows).items():
        member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
        member.size = len(content)
        members.append((member, content))
    return members


def hostile_tar(rng: Random) -> bytes:
    """Members that point elsewhere, are links or devices, or lie about their length."""
    members = plain_members()
    member, _ = rng.choice(members)
    what = rng.randrange(5)
    if what == 0:
        member.name = rng.choice(
            ("../../data_batch_1", "/etc/cron.d/data_batch_1", "..", "", "a" * 90, "con", "x/../../y")
        )
    elif what == 1:
        member.type = rng.choice(
            (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, b"Z")
        )
        member.linkname = rng.choice(("/etc/passwd", "../../x", member.name))
    elif what == 2:
        member.pax_headers = {"path": "../../evil", "size": str(rng.choice(EXTREMES))}
    elif what == 3:
        members[rng.randrange(len(members))] = (member, hostile_pickle(rng)[: member.size].ljust(member.size, b"."))
    packed = bytearray(tar(members))
    if what == 4:
        start = 512 * rng.randrange(len(packed) // 512)
        packed[start + 124 : start + 136] = rng.choice(
            (b"77777777777\0", b"\x80" + b"\xff" * 11, b"-0000000001\0", b"\0" * 12)
        )
    return zlib_or_plain(rng, bytes(packed))


def zlib_or_plain(rng: Random, content: bytes) -> bytes:
    return content if rng.random() < 0.2 else gzip.compress(content, 1)


def cifar_archive(home: Path) -> Reader:
    path = home / "cifar-10-python.tar.gz"
    whole = gzip.compress(tar(plain_members()), 1)

    def read(content: bytes) -> None:
        forget_cache(home)
        path.write_bytes(content)
        load(DataConfig(name="cifar10", root=str(path)))

    def hostile(rng: Random) -> bytes:
        if rng.random() < 0.5:
            return hostile_tar(rng)
        return gzip.compress(mutated(rng, [gzip.decompress(whole)]), 1)  # damage within, intact without

    return Reader([whole], read, hostile, share=0.6)


def idx(shape: tuple[int, ...], kind: int = 8) -> bytes:
    values = bytes(i % 10 for i in range(int(np.prod(shape))))
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values


def hostile_idx(rng: Random) -> bytes:
    shape = [rng.choice((0, 1, 3, 28, 2**16, 2**31, 2**32 - 1)) for _ in range(rng.randrange(6))]
    head = bytes([0, 0, rng.choice((8, 8, 8, 9, 13, 14)), len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    return head + rng.randbytes(rng.randrange(100))


def fashion(home: Path, which: str, zipped: bool) -> Reader:
    suffix = ".gz" if zipped else ""
    files = {f"{part}-images-idx3-ubyte{suffix}": idx((3, 8, 8)) for part in ("train", "t10k")}
    files |= {f"{part}-labels-idx1-ubyte{suffix}": idx((3,)) for part in ("train", "t10k")}
    packed = {name: gzip.compress(content, 1) if zipped else content for name, content in files.items()}
    place = lay(home / "fashion", packed)
    target = place / f"train-{which}{suffix}"

    def read(content: bytes) -> None:
        forget_cache(home)
        target.write_bytes(content)
        load(DataConfig(name="fashion-mnist", root=str(place)))

    def hostile(rng: Random) -> bytes:
        inner = hostile_idx(rng) if rng.random() < 0.5 else mutated(rng, [files[target.name]])
        return gzip.compress(inner, 1) if zipped else inner

    return Reader([packed[target.name]], read, hostile)


def cache_entry(home: Path, which: str) -> Reader:
    """An entry of the image cache that was damaged since it was written: found out, and built again."""
    source = home / "source"
    source.write_bytes(b"x")

    def build(target: Path) -> dict[str, Any]:
        np.save(target / "images.npy", np.zeros((2, 4, 4, 1), np.uint8))
        np.save(target / "labels.npy", np.arange(2))
        return {"mean": [0.5], "skipped": []}

    def entry() -> Any:
        return cached("fuzz", [source], {}, build)

    entry()
    place = next((home / "cache").glob("fuzz-*[!k]"))
    whole = {path.name: path.read_bytes() for path in place.iterdir()}

    def read(content: bytes) -> None:
        lay(place, whole)
        (place / which).write_bytes(content)
        found = entry()
        assert found.arrays["images"].shape == (2, 4, 4, 1) and found.arrays["labels"].tolist() == [0, 1]
        assert found.meta == {"mean": [0.5], "skipped": []}

    def hostile(rng: Random) -> bytes:
        if which == "manifest.json":
            return json.dumps(hostile_tree(rng, json.loads(whole[which]))).encode()
        memory = io.BytesIO()
        shape = tuple(rng.choice((0, 1, 2, 4, 2**40)) for _ in range(rng.randrange(5)))
        kind = rng.choice(("|u1", "<i8", "|O", "<f8", "|V4"))
        np.lib.format.write_array_header_1_0(memory, {"descr": kind, "fortran_order": False, "shape": shape})
        return (memory.getvalue() + bytes(200))[: len(whole[which])]

    return Reader([whole[which]], read, hostile, text=which.endswith("json"))


READERS: dict[str, Make] = {
    "cifar-batch": cifar_pickle,
    "cifar-names": cifar_names,
    "pickle": any_pickle,
    "cifar-archive": cifar_archive,
    "idx-images": lambda home: fashion(home, "images-idx3-ubyte", False),
    "idx-images-gz": lambda home: fashion(home, "images-idx3-ubyte", True),
    "idx-labels-gz": lambda home: fashion(home, "labels-idx1-ubyte", True),
    "cache-npy": lambda home: cache_entry(home, "labels.npy"),
    "cache-manifest": lambda home: cache_entry(home, "manifest.json"),
}
