"""ImageNet-127 from class folders and from arrays, grouped by a file or grouped already."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unissl.data import DataConfig, load
from unissl.errors import UserError
from unissl.splits import SplitConfig, make_split

WNIDS = ["n01440764", "n01443537", "n02084071", "n02123045"]
GROUPS = "# wnid, group\nn01440764,fish\nn01443537 ,\tfish\n\nn02084071 dog or wolf\nn02123045\tcat\n"
COUNTS = [3, 4, 5, 2]
RNG = np.random.RandomState(0)
TRAIN = RNG.randint(0, 256, (sum(COUNTS), 3072), dtype=np.uint8)
NUMBERS = np.repeat([1, 2, 118, 200], COUNTS)
VAL, VAL_NUMBERS = TRAIN[:4, ::-1].copy(), np.array([200, 118, 2, 1])


def write_folders(root: Path, names: list[str] = WNIDS) -> Path:
    for part in ("train", "val"):
        for number, (name, count) in enumerate(zip(names, COUNTS, strict=True)):
            folder = root / part / name
            folder.mkdir(parents=True)
            for i in range(count if part == "train" else 1):
                pixels = np.full((64, 96, 3), (10 * number, 20 * i, 200 if part == "val" else 0), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{name}_{i}.JPEG", format="PNG")
    return root


def as_npz(path: Path, data: np.ndarray, labels: np.ndarray) -> None:
    np.savez(path.with_name(f"{path.name}.npz"), data=data, labels=labels, mean=data.mean(0))


def write_arrays(root: Path) -> Path:
    root.mkdir(exist_ok=True)
    for number, rows in enumerate((slice(0, 9), slice(9, 10), slice(10, 14)), 1):
        as_npz(root / f"train_data_batch_{number}", TRAIN[rows], NUMBERS[rows])
    as_npz(root / "val_data", VAL, VAL_NUMBERS)
    return root


def group_file(tmp_path: Path, text: str = GROUPS) -> str:
    (tmp_path / "groups.txt").write_text(text, encoding="utf-8")
    return str(tmp_path / "groups.txt")


def config(root: Path, groups: str | None = None, **more: Any) -> DataConfig:
    return DataConfig(name="imagenet127", root=str(root), class_map=groups, **more)


def test_class_folders_by_a_file(tmp_path: Path) -> None:
    dataset = load(config(write_folders(tmp_path / "data"), group_file(tmp_path)))
    assert dataset.train.class_names == ("cat", "dog or wolf", "fish")
    assert dataset.train.labels.tolist() == [2] * 7 + [1] * 5 + [0] * 2
    assert dataset.test is not None and dataset.test.labels.tolist() == [2, 2, 1, 0]
    assert dataset.train.images.shape == (14, 32, 32, 3)
    assert dataset.train.images[8, 0, 31].tolist() == [20, 20, 0] and dataset.test.images[3, 5, 5, 2] == 200
    assert dataset.mean == (0.485, 0.456, 0.406) and dataset.std == (0.229, 0.224, 0.225)


def test_folders_that_are_groups_already(tmp_path: Path) -> None:
    root = write_folders(tmp_path, ["10", "9", "bird", "fish"])
    assert load(config(root)).train.class_names == ("10", "9", "bird", "fish")
    assert load(config(root)).train.labels.tolist() == [0] * 3 + [1] * 4 + [2] * 5 + [3] * 2


def test_another_grouping_decodes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_folders(tmp_path / "data")
    load(config(root))
    monkeypatch.delattr("unissl.data.sources.imagenet127.store_encoded")
    assert load(config(root, group_file(tmp_path))).train.num_classes == 3


def test_arrays_by_a_file_of_wnids(tmp_path: Path) -> None:
    root = write_arrays(tmp_path / "data")
    lines = [f"{wnid} {number} thing" for wnid, number in zip(WNIDS, (1, 2, 118, 200), strict=True)]
    (root / "map_clsloc.txt").write_text("\n".join([*lines, "n07753592 950 banana"]))
    dataset = load(config(root, group_file(tmp_path)))
    assert np.array_equal(dataset.train.images, TRAIN.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    assert dataset.train.class_names == ("cat", "dog or wolf", "fish")
    assert dataset.train.labels.tolist() == [2] * 7 + [1] * 5 + [0] * 2
    assert dataset.test is not None and dataset.test.labels.tolist() == [0, 1, 2, 2]


def test_arrays_by_a_file_of_numbers_and_grouped_already(tmp_path: Path) -> None:
    root = write_arrays(tmp_path / "data")
    dataset = load(config(root, group_file(tmp_path, "1 fish\n2 fish\n118 dog\n200 cat\n")))
    assert dataset.train.labels.tolist() == [2] * 7 + [1] * 5 + [0] * 2
    assert load(config(root)).train.class_names == ("1", "2", "118", "200")
    assert load(config(root, image_size=16)).train.images.shape == (14, 16, 16, 3)


def test_a_tenth_is_labelled_and_the_rest_is_the_pool(tmp_path: Path) -> None:
    dataset = load(config(write_folders(tmp_path)))
    labels = np.repeat(np.arange(3), [2860, 95, 10])
    made = make_split(labels, 3, SplitConfig(**dataset.split), 0)
    assert made.labelled_counts == (286, round(9.5), 1)
    assert sorted([*made.labelled, *made.unlabelled]) == list(range(len(labels)))


def test_an_unreadable_image_is_left_out_and_listed(tmp_path: Path) -> None:
    root = write_folders(tmp_path)
    (root / "train" / WNIDS[1] / "n01443537_2.JPEG").write_bytes(b"")
    table = load(config(root)).train
    assert table.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 5 + [3] * 2
    assert table.skipped == ((f"train/{WNIDS[1]}/n01443537_2.JPEG", "the file is empty"),)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "groups.txt is empty; a line is a class and its group"),
        ("n01440764\n", r"Line 1 of the group file .* has one word \('n01440764'\)"),
        (GROUPS + "n01440764 dog\n", "Line 7 of .* puts n01440764 into 'dog', and an earlier one into 'fish'"),
        (GROUPS.replace("n02123045", "n99999999"), "has no group for the class n02123045; add a line for it."),
        ("\n".join(f"{wnid} all" for wnid in WNIDS), "at least two classes"),
    ],
)
def test_wrong_group_files(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load(config(write_folders(tmp_path / "data"), group_file(tmp_path, text)))


def test_group_files_that_cannot_be_read(tmp_path: Path) -> None:
    root = write_folders(tmp_path / "data")
    with pytest.raises(UserError, match=r"nothing\.txt cannot be read \(No such file"):
        load(config(root, str(tmp_path / "nothing.txt")))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x00")
    with pytest.raises(UserError, match="is no UTF-8 text"):
        load(config(root, str(tmp_path / "binary")))
    with pytest.raises(UserError, match=r"data\.class_map has no effect on 'svhn'"):
        load(DataConfig(name="svhn", class_map="x"))


def test_a_thousand_classes_want_a_group_file(tmp_path: Path) -> None:
    data = np.zeros((128, 12), dtype=np.uint8)
    as_npz(tmp_path / "train_data_batch_1", data, np.arange(1, 129))
    as_npz(tmp_path / "val_data", data, np.arange(1, 129))
    with pytest.raises(UserError, match=r"has 128 classes, so they are not in 127 groups yet; .*data\.class_map=FILE"):
        load(config(tmp_path))
    with pytest.raises(UserError, match=r"no group for the class 2; add a line for it, or put map_clsloc\.txt"):
        load(config(tmp_path, group_file(tmp_path, "1 a\nn01443537 b\n")))


def npz_with(**fields: Any) -> Callable[[Path], object]:
    return lambda path: np.savez(path, **fields)


GOOD = {"data": TRAIN[9:10], "labels": NUMBERS[9:10]}


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:1000]), "cannot be read"),
        (lambda path: path.write_bytes(b""), "cannot be read"),
        (npz_with(**{**GOOD, "data": np.array([{}], dtype=object)}), "cannot be read .*not of numbers"),
        (npz_with(data=GOOD["data"]), "cannot be read .*labels"),
        (npz_with(**{**GOOD, "labels": [1, 2]}), "has 1 images and 2 labels"),
        (npz_with(**{**GOOD, "labels": [-1]}), "labels that are not numbers from 1"),
        (npz_with(**{**GOOD, "labels": [0.5]}), "labels that are not numbers from 1"),
        (npz_with(**{**GOOD, "data": TRAIN[9:10, :3070]}), r"uint8 of shape \(1, 3070\), not square colour images"),
        (npz_with(**{**GOOD, "data": TRAIN[9:10].astype(float)}), "float64 of shape"),
        (lambda path: path.unlink(), r"lacks train_data_batch_2\.npz"),
    ],
)
def test_damaged_arrays_are_named(tmp_path: Path, write: Callable[[Path], object], sentence: str) -> None:
    root = write_arrays(tmp_path)
    write(root / "train_data_batch_2.npz")
    with pytest.raises(UserError, match=sentence) as caught:
        load(config(root))
    assert "train_data_batch_2" in str(caught.value) and "\n" not in str(caught.value)


def test_pickles_without_a_published_checksum_are_not_read(tmp_path: Path) -> None:
    content = pickle.dumps({"data": TRAIN, "labels": NUMBERS.tolist()})
    for name in ("train_data_batch_1", "val_data"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=r"as pickles, which are not read .*; download Imagenet32_train_npz\.zip"):
        load(config(tmp_path))


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"imagenet127 was not found \(there is nothing in .*image-net\.org"):
        load(config(tmp_path))
    (tmp_path / "train").mkdir()
    with pytest.raises(UserError, match=rf"{tmp_path} lacks val of imagenet127"):
        load(config(tmp_path))
    (tmp_path / "val").mkdir()
    with pytest.raises(UserError, match=r"train holds no class folders"):
        load(config(tmp_path))
    write_folders(root := tmp_path / "other")
    (root / "train" / "n03000000" / "deeper").mkdir(parents=True)
    with pytest.raises(UserError, match=r"n03000000 holds no images; put them directly into it"):
        load(config(root))
    (root / "train" / "n03000000" / "deeper").rmdir()
    (root / "train" / "n03000000").rename(root / "val" / "n03000000")
    Image.new("RGB", (9, 9)).save(root / "val" / "n03000000" / "x.jpeg")
    with pytest.raises(UserError, match=r"The class 'n03000000' of val in .* is not in train"):
        load(config(root))
    for name in ("train", "val"):
        (odd := tmp_path / f"{name}-is-a-file").mkdir()
        (odd / ("val" if name == "train" else "train") / "n01440764").mkdir(parents=True)
        Image.new("RGB", (9, 9)).save(odd / ("val" if name == "train" else "train") / "n01440764" / "x.jpeg")
        (odd / name).write_bytes(b"")
        with pytest.raises(UserError, match=r"lacks train_data_batch_1|cannot be opened as a folder"):
            load(config(odd))
    (tmp_path / "zip").mkdir()
    (tmp_path / "zip" / "Imagenet32_train_npz.zip").write_bytes(b"packed")
    with pytest.raises(UserError, match=r"run 'unzip .*Imagenet32_train_npz\.zip -d"):
        load(config(tmp_path / "zip"))


def test_the_missing_array_is_named(tmp_path: Path) -> None:
    for path in write_arrays(tmp_path).glob("val_data*"):
        path.unlink()
    with pytest.raises(UserError, match=r"lacks val_data\.npz of imagenet127"):
        load(config(tmp_path))


def test_folders_of_something_else_are_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISSL_DATA", str(write_folders(tmp_path)))
    with pytest.raises(UserError, match="imagenet127 was not found"):
        load(DataConfig(name="imagenet127"))
    write_folders(tmp_path / "imagenet127")
    assert len(load(DataConfig(name="imagenet127")).train) == 14
