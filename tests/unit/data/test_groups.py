"""Images of one group stay together: in folds, in hold-outs, and their unlabelled ones leave the pool with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unissl.data import DataConfig
from unissl.data.dataset import choose_holdout
from unissl.data.folder.index import scan_folder
from unissl.data.folder.load import GROUP_HELD_OUT, load_folder
from unissl.data.groups import number_groups
from unissl.errors import UserError
from unissl.run.folds import make_folds, without_labels
from unissl.run.given_images import store_images
from unissl.run_folder import RunFolder
from unissl.splits import SplitConfig, make_split
from unissl.types import Split


def drawn(seed: int, classes: int = 4, count: int = 80, groups: int = 25) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, classes, count), rng.integers(0, groups, count)


def test_equal_names_are_one_group_and_none_is_alone() -> None:
    numbers = number_groups(["b", None, "a", "b", None])
    assert numbers[0] == numbers[3] and len(set(numbers.tolist())) == 4


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("folds", [2, 4])
def test_folds_keep_groups_together_and_every_class(seed: int, folds: int) -> None:
    labels, groups = drawn(seed, groups=(6, 12, 25, 80)[seed % 4])
    made = make_folds(labels, folds, seed, groups)
    held = np.concatenate(made)
    assert len(made) > 1 and len(set(held.tolist())) == len(held)
    for fold in made:
        rest = np.setdiff1d(np.arange(len(labels)), fold)
        assert not set(groups[fold]) & set(groups[rest])
        assert set(labels[rest]) == set(labels)
    if seed % 4 == 3:
        assert len(held) == len(labels) and max(map(len, made)) - min(map(len, made)) <= 8


def test_a_group_with_all_labels_of_a_class_is_never_left_out() -> None:
    labels, groups = np.array([0, 0, 1, 1, 1, 2, 2]), np.array([5, 5, 1, 2, 3, 4, 5])
    held = np.concatenate(make_folds(labels, 3, 0, groups))
    assert sorted(held) == [2, 3, 4, 5]
    assert make_folds(np.array([0, 0, 1, 1]), 2, 0, np.array([0, 0, 1, 1])) == []


def test_unlabelled_images_of_a_held_out_group_leave_the_pool() -> None:
    split = Split(np.arange(4), np.array([0, 0, 1, 1]), np.arange(4, 9), 2)
    groups = np.array([0, 1, 2, 3, 0, 0, 1, 7, 8])
    less = without_labels(split, np.array([0, 2]), groups)
    assert less.labelled.tolist() == [1, 3] and less.unlabelled.tolist() == [6, 7, 8]


@pytest.mark.parametrize("seed", range(10))
def test_hold_outs_are_whole_groups(seed: int) -> None:
    labels, groups = drawn(seed)
    labels[seed::7] = -1
    rows = choose_holdout(labels, 20, groups)
    labelled = np.flatnonzero(labels >= 0)
    rest = np.setdiff1d(labelled, rows)
    assert 10 <= len(rows) <= 20 and (labels[rows] >= 0).all()
    assert not set(groups[rows]) & set(groups[rest])
    assert (np.bincount(labels[rest]) >= 2).all()


def test_a_hold_out_that_groups_forbid() -> None:
    with pytest.raises(UserError, match="whole groups are held out"):
        choose_holdout(np.array([0, 0, 0, 1, 1, 1]), 2, np.array([0, 0, 0, 1, 1, 1]))


def test_labels_for_calibration_are_whole_groups() -> None:
    labels, groups = drawn(1)
    split = make_split(labels, 4, SplitConfig(kind="given"), 0, hold_out=True, groups=groups)
    assert len(split.heldout) and not set(groups[split.heldout]) & set(groups[split.labelled])
    assert set(split.labels.tolist()) == {0, 1, 2, 3}


def make_series(root: Path) -> None:
    """Three series of four photos each, two of them labelled, one cat and one dog."""
    for series in "abc":
        (root / series).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (8, 8), (40 * number, 99, ord(series))).save(root / series / f"{number}.png")


def write_labels(path: Path, *columns: str) -> None:
    lines = [",".join(("file", "label", *columns))]
    for series in "abc":
        for number, label in enumerate(("cat", "dog", "", "")):
            lines.append(",".join((f"{series}/{number}.png", label, *([f"series {series}"] if columns else []))))
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("by", ["column", "folder"])
def test_a_folder_with_groups(tmp_path: Path, by: str) -> None:
    make_series(tmp_path / "photos")
    write_labels(tmp_path / "labels.csv", *(["group"] if by == "column" else []))
    config = DataConfig(name="folder", root=str(tmp_path / "photos"), labels=str(tmp_path / "labels.csv"))
    config = config.model_copy(update={"groups": "folder" if by == "folder" else None})
    table = load_folder(config).train
    assert table.groups is not None and table.groups.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    held = load_folder(config.model_copy(update={"test_holdout": 2}))
    assert held.test is not None and held.test.files is not None and held.train.files is not None
    (series,) = {file[0] for file in held.test.files}
    assert len(held.test) == 2 and len(held.train) == 8 and series not in {file[0] for file in held.train.files}
    assert held.train.skipped == tuple((f"{series}/{number}.png", GROUP_HELD_OUT) for number in (2, 3))


def test_errors_name_the_fix(tmp_path: Path) -> None:
    make_series(tmp_path / "photos")
    write_labels(tmp_path / "labels.csv", "group")
    config = DataConfig(name="folder", root=str(tmp_path / "photos"), labels=str(tmp_path / "labels.csv"))
    with pytest.raises(UserError, match="leave out --groups folder"):
        scan_folder(config.model_copy(update={"groups": "folder"}))
    with pytest.raises(UserError, match="holds all labels of class 'a'.*label images of at least two groups"):
        scan_folder(DataConfig(name="folder", root=str(tmp_path / "photos"), groups="folder"))
    with (tmp_path / "labels.csv").open("a") as file:
        file.write("a/0.png,cat,another\n")
    with pytest.raises(UserError, match="keep one group per file"):
        scan_folder(config)


def test_groups_from_python(tmp_path: Path) -> None:
    make_series(tmp_path / "photos")
    paths = sorted((tmp_path / "photos").rglob("*.png"))
    labels, groups = ["cat", "dog", None, None] * 3, [path.parent.name if path.stem != "3" else None for path in paths]
    tree = store_images(paths, labels, RunFolder(tmp_path / "run"), groups)
    index = scan_folder(DataConfig(**tree))
    assert index is not None and index.groups == tuple(groups)
    with pytest.raises(UserError, match="12 images and 2 groups"):
        store_images(paths, labels, RunFolder(tmp_path / "run"), ["a", "b"])
    with pytest.raises(UserError, match="give a list of paths"):
        store_images(np.zeros((2, 8, 8), np.uint8), ["a", "b"], RunFolder(tmp_path / "run"), ["a", "b"])
