"""STL-10 from its binary files: colour after colour, column after column."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unissl.data import DataConfig, load
from unissl.errors import UserError
from unissl.splits import SplitConfig, make_split

RNG = np.random.RandomState(0)
SMOOTH = RNG.randint(0, 256, (26, 6, 6, 3), dtype=np.uint8)
PIXELS = np.stack([np.asarray(Image.fromarray(image).resize((96, 96))) for image in SMOOTH])


def image_bytes(pixels: np.ndarray) -> bytes:
    return b"".join(bytes([image[y, x, c]]) for image in pixels for c in range(3) for x in range(96) for y in range(96))


FILES = {
    "train_X.bin": image_bytes(PIXELS[:20]),
    "train_y.bin": bytes([*range(1, 11), *range(1, 11)]),
    "test_X.bin": image_bytes(PIXELS[20:22]),
    "test_y.bin": bytes([10, 1]),
    "unlabeled_X.bin": image_bytes(PIXELS[22:]),
}


def write_all(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def test_labelled_rows_then_the_pool_without_truth(tmp_path: Path) -> None:
    write_all(tmp_path / "stl10_binary")
    dataset = load(DataConfig(name="stl10", root=str(tmp_path)))
    assert dataset.train.labels.tolist() == [*range(10), *range(10), -1, -1, -1, -1]
    assert dataset.test is not None and dataset.test.labels.tolist() == [9, 0]
    assert dataset.train.class_names[7] == "monkey" and dataset.flip
    assert dataset.train.images.shape == (24, 32, 32, 3)
    for row, image in ((0, 0), (19, 19), (23, 25)):
        scaled = np.asarray(Image.fromarray(PIXELS[image]).resize((32, 32), Image.Resampling.BILINEAR))
        assert np.array_equal(dataset.train.images[row], scaled)
    assert dataset.mean == pytest.approx((0.44078, 0.42784, 0.38667), abs=1e-5)
    assert dataset.std == pytest.approx((0.26824, 0.26118, 0.26863), abs=1e-5)


def test_any_size(tmp_path: Path) -> None:
    dataset = load(DataConfig(name="stl10", root=str(write_all(tmp_path)), image_size=96))
    assert np.array_equal(dataset.train.images, np.concatenate([PIXELS[:20], PIXELS[22:]]))


def test_the_pool_is_what_has_no_label(tmp_path: Path) -> None:
    dataset = load(DataConfig(name="stl10", root=str(write_all(tmp_path))))
    made = make_split(dataset.train.labels, 10, SplitConfig(labels_per_class=1), 3)
    assert made.labelled_counts == (1,) * 10
    assert sorted(made.unlabelled) == [20, 21, 22, 23]  # the ten labelled images that were not drawn are dropped


def test_the_archive_is_to_be_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "stl10_binary.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(write_all(tmp_path / "elsewhere"), "stl10_binary")
    monkeypatch.setenv("UNISSL_DATA", str(tmp_path))
    for root in (str(packed), str(tmp_path), None):
        with pytest.raises(UserError) as caught:
            load(DataConfig(name="stl10", root=root))
        command = f"tar xf {packed} -C {tmp_path}"
        assert f"is packed, and stl10 is read unpacked; run '{command}'" in str(caught.value)
    with tarfile.open(packed) as archive:  # as the sentence says
        archive.extractall(tmp_path, filter="data")
    assert len(load(DataConfig(name="stl10")).train) == 24


@pytest.mark.parametrize(
    ("name", "damaged", "sentence"),
    [
        ("unlabeled_X.bin", FILES["unlabeled_X.bin"][:-1], "has 110591 bytes, which is not a whole number of images"),
        ("train_X.bin", b"", "has 0 bytes"),
        ("train_X.bin", FILES["train_X.bin"][: -3 * 96 * 96], "train_y.bin has 20 labels for 19 images"),
        ("train_y.bin", bytes(20), "labels outside 1 to 10"),
        ("test_y.bin", bytes([11, 1]), "labels outside 1 to 10"),
        ("test_y.bin", b"", "has 0 labels for 2 images"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, damaged: bytes, sentence: str) -> None:
    (write_all(tmp_path) / name).write_bytes(damaged)
    with pytest.raises(UserError, match=sentence):
        load(DataConfig(name="stl10", root=str(tmp_path)))


def test_missing_files_are_named(tmp_path: Path) -> None:
    for name in ("unlabeled_X.bin", "test_y.bin"):
        (write_all(tmp_path) / name).unlink()
        with pytest.raises(UserError, match=rf"{tmp_path} lacks {name} of stl10\. Unpack"):
            load(DataConfig(name="stl10", root=str(tmp_path)))
