"""Food-101 from a folder as its archive unpacks to."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unissl.data import DataConfig, load
from unissl.errors import UserError

CLASSES = ["apple_pie", "baklava", "waffles"]
TRAIN = [f"{name}/{number}" for name in CLASSES for number in (1005649, 17)]
TEST = [f"{name}/{number}" for name in CLASSES for number in (5,)]
SHAPES = [(70, 50), (50, 70), (260, 230)]
"""The last one is large enough for a JPEG to be decoded coarser, which must not happen here."""


def write_all(root: Path) -> Path:
    rng = np.random.RandomState(0)
    for folder in ("images", "meta"):
        (root / folder).mkdir(parents=True)
    (root / "meta" / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    (root / "meta" / "train.txt").write_text("\n".join(TRAIN) + "\n")
    (root / "meta" / "test.txt").write_text("\n".join(TEST) + "\n")
    for number, name in enumerate([*TRAIN, *TEST]):
        path = root / "images" / f"{name}.jpg"
        path.parent.mkdir(exist_ok=True)
        small = Image.fromarray(rng.randint(0, 256, (9, 9, 3), dtype=np.uint8))
        small.resize(SHAPES[number % 3]).save(path, quality=95)
    return root


def squeezed(path: Path, size: int) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC))


@pytest.mark.parametrize(("size", "stored"), [(None, 36), (64, 73)])
def test_images_are_squeezed_to_a_square(tmp_path: Path, size: int | None, stored: int) -> None:
    root = write_all(tmp_path / "food-101")
    dataset = load(DataConfig(name="food101", root=str(tmp_path), image_size=size))
    assert stored == math.floor((size or 32) / 0.875)
    assert dataset.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.test is not None and dataset.test.labels.tolist() == [0, 1, 2]
    assert dataset.train.class_names == tuple(CLASSES)
    for row, name in enumerate(TRAIN):
        assert np.array_equal(dataset.train.images[row], squeezed(root / "images" / f"{name}.jpg", stored))
    assert dataset.crop == (size or 32) and dataset.flip
    assert dataset.mean == (0.485, 0.456, 0.406) and dataset.std == (0.229, 0.224, 0.225)


def test_an_image_that_comes_later_is_seen(tmp_path: Path) -> None:
    root = write_all(tmp_path)
    (missing := root / "images" / "waffles" / "5.jpg").rename(tmp_path / "aside.jpg")
    with pytest.raises(UserError, match=r"waffles/5\.jpg cannot be read \(the file does not exist\)"):
        load(DataConfig(name="food101", root=str(root)))
    (tmp_path / "aside.jpg").rename(missing)
    assert len(load(DataConfig(name="food101", root=str(root))).train) == 6


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("meta/classes.txt", b"\n", "classes.txt is empty"),
        ("meta/classes.txt", b"apple_pie\n", "at least two classes"),
        ("meta/classes.txt", b"a" * 5000, r"has only 'a{97}\.\.\.'; add another class"),
        ("meta/classes.txt", b"\xff\xfe\x00", "classes.txt cannot be read as a list of names"),
        ("meta/test.txt", b"apple_pie/5\npizza/7\n", "Line 2 of .*test.txt names 'pizza/7', of no class"),
        ("images/waffles/17.jpg", b"", r"waffles/17\.jpg cannot be read \(the file is empty\)"),
        ("images/baklava/17.jpg", b"\xff\xd8\xff\xe0 cut", r"baklava/17\.jpg cannot be read"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (write_all(tmp_path) / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        load(DataConfig(name="food101", root=str(tmp_path)))


def test_missing_parts_and_the_archive(tmp_path: Path) -> None:
    root = write_all(tmp_path / "food")
    (root / "meta" / "test.txt").unlink()
    with pytest.raises(UserError, match=rf"{root} lacks meta/test\.txt of food101\. Unpack food-101\.tar\.gz"):
        load(DataConfig(name="food101", root=str(root)))
    (tmp_path / "food-101.tar.gz").write_bytes(b"packed")
    with pytest.raises(UserError, match=rf"run 'tar xf {tmp_path}/food-101\.tar\.gz -C {tmp_path}'"):
        load(DataConfig(name="food101", root=str(tmp_path)))
