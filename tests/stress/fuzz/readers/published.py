"""Data sets in formats of their own: STL-10's bytes, Food-101's lists, ImageNet's arrays."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from case import Make, Reader
from mutate import mutated

from readers.places import forget_cache, lay
from readers.tables import IMAGES
from unissl.data import DataConfig, load
from unissl.data.sources.imagenet127 import read_groups


def pixels(*shape: int) -> Any:
    return np.random.RandomState(0).randint(0, 256, shape, dtype=np.uint8)


def stl10(home: Path, name: str) -> Reader:
    image = pixels(2, 3 * 96 * 96).tobytes()
    files = {f"{part}_X.bin": image for part in ("train", "test", "unlabeled")}
    place = lay(home / "stl10", files | {"train_y.bin": b"\1\2", "test_y.bin": b"\3\x0a"})

    def read(content: bytes) -> None:
        forget_cache(home)
        (place / name).write_bytes(content)
        load(DataConfig(name="stl10", root=str(place)))

    return Reader([(place / name).read_bytes()], read)


def food101(home: Path, name: str) -> Reader:
    good = {
        "meta/classes.txt": b"cake\npie\n",
        "meta/train.txt": b"cake/1\npie/2\n",
        "meta/test.txt": b"pie/2\ncake/1\n",
    }
    place = lay(
        home / "food", good | {"images/cake/1.jpg": IMAGES[0], "images/pie/2.jpg": IMAGES[1], "outside.jpg": IMAGES[2]}
    )

    def read(content: bytes) -> None:
        forget_cache(home)
        (place / name).write_bytes(content)
        load(DataConfig(name="food101", root=str(place)))

    def hostile(rng: Random) -> bytes:
        words = (
            "cake/1", "pie/2", "cake/../../outside", "../outside", "/etc/passwd", "cake/", "cake", "pie", "..", "a\0b",
            "é" * 500,
        )  # fmt: skip
        return "\n".join(rng.choice(words) for _ in range(rng.randrange(5))).encode()

    return Reader([good[name]], read, hostile, text=True)


def npz(values: dict[str, Any]) -> bytes:
    memory = io.BytesIO()
    np.savez_compressed(memory, **values)
    return memory.getvalue()


def imagenet(home: Path) -> Reader:
    values = {"data": pixels(2, 48), "labels": np.array([1, 2])}
    good = npz(values)
    place = lay(home / "imagenet", {"train_data_batch_1.npz": good, "val_data.npz": good})

    def read(content: bytes) -> None:
        forget_cache(home)
        (place / "val_data.npz").write_bytes(content)
        load(DataConfig(name="imagenet127", root=str(place)))

    def hostile(rng: Random) -> bytes:
        if rng.random() < 0.4:
            changed = dict(values)
            others: list[Any] = [
                np.array(["a"]),
                np.array([None]),
                np.zeros((2, 47), np.uint8),
                np.zeros(3),
                np.array([2**40, 1]),
            ]
            changed[rng.choice(("data", "labels", "x"))] = rng.choice(others)
            return npz(changed)
        memory = io.BytesIO()  # intact as a zip file, damaged within
        with zipfile.ZipFile(memory, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
            for key, value in values.items():
                inner = io.BytesIO()
                np.save(inner, value)
                content = mutated(rng, [inner.getvalue()]) if rng.random() < 0.6 else inner.getvalue()
                archive.writestr(rng.choice((f"{key}.npy", f"{key}.npy", f"../{key}.npy", "/etc/x")), content)
        return memory.getvalue()

    return Reader([good], read, hostile)


def groups(home: Path) -> Reader:
    path = home / "groups.txt"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        assert all(name and group for name, group in read_groups(path).items())

    return Reader([b"# classes\nn01440764 fish\nn01443537,fish\n2\tbird of prey\n"], read, text=True)


def wnids(home: Path) -> Reader:
    reader = imagenet(home)
    whole = npz({"data": pixels(2, 48), "labels": np.array([1, 2])})
    (home / "groups.txt").write_text("n01440764 fish\nn01443537 bird\n")
    path = home / "imagenet" / "map_clsloc.txt"

    def read(content: bytes) -> None:
        forget_cache(home)
        path.write_bytes(content)
        (home / "imagenet" / "val_data.npz").write_bytes(whole)
        load(DataConfig(name="imagenet127", root=str(home / "imagenet"), class_map=str(home / "groups.txt")))

    assert reader.files
    return Reader([b"n01440764 1 tench\nn01443537 2 goldfish\n"], read, text=True)


READERS: dict[str, Make] = {
    "stl10-images": lambda home: stl10(home, "test_X.bin"),
    "stl10-labels": lambda home: stl10(home, "test_y.bin"),
    "food101-list": lambda home: food101(home, "meta/test.txt"),
    "food101-classes": lambda home: food101(home, "meta/classes.txt"),
    "imagenet-npz": imagenet,
    "imagenet-groups": groups,
    "imagenet-wnids": wnids,
}
