"""Fashion-MNIST's idx files, and arrays of the image cache."""

from __future__ import annotations

import gzip
import io
import json
import struct
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from case import Make, Reader
from mutate import hostile_tree, mutated

from readers.places import forget_cache, lay
from unissl.data import DataConfig, load
from unissl.utils.cache import cached


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
    "idx-images": lambda home: fashion(home, "images-idx3-ubyte", False),
    "idx-images-gz": lambda home: fashion(home, "images-idx3-ubyte", True),
    "idx-labels-gz": lambda home: fashion(home, "labels-idx1-ubyte", True),
    "cache-npy": lambda home: cache_entry(home, "labels.npy"),
    "cache-manifest": lambda home: cache_entry(home, "manifest.json"),
}
