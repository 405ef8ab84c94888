"""A folder of images in each of its layouts, and everything that can be wrong with one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unissl.data import DataConfig, Dataset, load, scan_folder
from unissl.data.dataset import choose_holdout
from unissl.data.folder.index import find_images
from unissl.data.folder.probe import probe_dataset
from unissl.data.images.decode import decode
from unissl.data.store import decode_to_cache as store
from unissl.errors import UserError
from unissl.splits import SplitConfig
from unissl.splits.open_set import load_data


def put(path: Path, value: int = 0, mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    colour: Any = (value, 255 - value, 7) if mode == "RGB" else value
    Image.new(mode, (40, 36), colour).save(path)
    return path


def folder(root: Path, **settings: Any) -> Dataset:
    return load(DataConfig(name="folder", root=str(root), **settings))


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two labelled cats, one dog, two unlabelled images."""
    root = tmp_path / "pets"
    put(root / "cat" / "b.png", 10)
    put(root / "cat" / "deep" / "er" / "a.png", 20)
    put(root / "dog" / "c.bmp", 30)
    put(root / "unlabeled" / "x.png", 40)
    put(root / "unlabeled" / "more" / "y.png", 50)
    return root


def test_class_folders_and_pool(pets: Path) -> None:
    dataset = folder(pets)
    train = dataset.train
    assert train.files == (
        "cat/b.png",
        "cat/deep/er/a.png",
        "dog/c.bmp",
        "unlabeled/more/y.png",
        "unlabeled/x.png",
    )
    assert train.labels.tolist() == [0, 0, 1, -1, -1] and train.class_names == ("cat", "dog")
    assert train.images.shape == (5, 32, 32, 3)
    assert train.images[:, 5, 6].tolist() == [[v, 255 - v, 7] for v in (10, 20, 30, 50, 40)]
    assert train.skipped == () and dataset.test is None and dataset.flip
    assert dataset.mean[0] == round(30 / 255, 4)


@pytest.mark.parametrize(("labelled", "pool"), [("labeled", "unlabeled"), ("Labelled", "Unlabelled")])
def test_labelled_folder_beside_the_pool(tmp_path: Path, labelled: str, pool: str) -> None:
    put(tmp_path / labelled / "cat" / "a.png")
    put(tmp_path / labelled / "dog" / "b.png")
    put(tmp_path / pool / "c.png")
    put(tmp_path / "old stuff" / "d.png")
    train = folder(tmp_path).train
    assert train.files == (f"{labelled}/cat/a.png", f"{labelled}/dog/b.png", f"{pool}/c.png")
    assert train.labels.tolist() == [0, 1, -1]


def test_ten_comes_after_two(tmp_path: Path) -> None:
    for name in ("10", "9", "2"):
        put(tmp_path / name / "a.png")
    train = folder(tmp_path).train
    assert train.class_names == ("2", "9", "10")
    assert dict(zip(train.files or (), train.labels.tolist(), strict=True)) == {
        "10/a.png": 2,
        "2/a.png": 0,
        "9/a.png": 1,
    }


def test_what_is_not_an_image_is_passed_over(pets: Path) -> None:
    for name in ("notes.txt", "labels.csv", "about.json", "README.md", ".hidden.png"):
        (pets / "cat" / name).write_text("x")
    put(pets / ".thumbnails" / "a.png")
    put(pets / "cat" / ".cache" / "a.png")
    put(pets / "__MACOSX" / "a.png")
    (pets / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504))
    (pets / "cat" / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    train = folder(pets).train
    assert len(train) == 5 and train.class_names == ("cat", "dog") and train.skipped == ()


def test_linked_files_count_and_dangling_links_are_listed(pets: Path) -> None:
    (pets / "unlabeled" / "link.png").symlink_to(pets / "cat" / "b.png")
    (pets / "unlabeled" / "lost.png").symlink_to(pets / "nowhere.png")
    train = folder(pets).train
    assert train.files is not None and "unlabeled/link.png" in train.files
    assert train.skipped == (("unlabeled/lost.png", "the file does not exist"),)


def test_loose_images_are_unlabelled(pets: Path) -> None:
    put(pets / "loose.png", 60)
    train = folder(pets).train
    assert train.files is not None
    assert train.labels[train.files.index("loose.png")] == -1


@pytest.mark.parametrize(
    "text",
    [
        "file,label\na.png,cat\nsub/b.png,dog\n",
        "\ufefffile_name;category\r\na.png;cat\r\nsub/b.png;dog\r\n",
        "id\tClass\tPath\n1\tcat\ta.png\n2\tdog\tsub/b.png\n\n",
        "a.png,cat\n./sub/b.png, dog \na.png,cat\n",
        "image,label\na.png,cat\nsub/b.png,dog\nc.png,\nd.png,-1\n",
    ],
)
def test_csv_labels(tmp_path: Path, text: str) -> None:
    for name in ("a.png", "sub/b.png", "c.png", "d.png"):
        put(tmp_path / name)
    (tmp_path / "labels.csv").write_text(text, encoding="utf-8")
    for labels in (str(tmp_path / "labels.csv"), "labels.csv"):
        train = folder(tmp_path, labels=labels).train
        assert train.files == ("a.png", "c.png", "d.png", "sub/b.png")
        assert train.labels.tolist() == [0, -1, -1, 1] and train.class_names == ("cat", "dog")


def test_csv_may_name_a_file_without_a_suffix(tmp_path: Path) -> None:
    put(tmp_path / "a.png").rename(tmp_path / "a")
    put(tmp_path / "b.png")
    (tmp_path / "l.csv").write_text("a,cat\nb.png,dog\n")
    assert folder(tmp_path, labels="l.csv").train.files == ("a", "b.png")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("file,label\na.png,cat\nnone.png,dog\n", r"Line 3 .*'none\.png'.*no such file"),
        ("file,label\n,cat\n", r"Line 2 .*no such file"),
        ("a.png,cat\nb.png,dog\na.png,dog\n", r"gives a\.png several labels, 'cat' and 'dog', and no other .* 'cat'"),
        ("a.png,cat\nb.png\n", r"Line 2 .*too few columns"),
        ("a.png,cat\nb.png,cat\n", "at least two classes"),
        ("file,label\n", "at least two classes"),
        ("a.png,cat,1\n", "needs a header line"),
        ("", "is empty"),
        ("a.png,cat\n../outside.png,dog\n", "is outside"),
    ],
)
def test_wrong_csv(tmp_path: Path, text: str, sentence: str) -> None:
    root = tmp_path / "root"
    for name in ("root/a.png", "root/b.png", "outside.png"):
        put(tmp_path / name)
    (root / "labels.csv").write_text(text)
    with pytest.raises(UserError, match=sentence):
        folder(root, labels="labels.csv")


def test_a_file_with_several_labels_is_in_the_pool_and_told_of(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.png", "d.png"):
        put(tmp_path / name)
    (tmp_path / "e.png").write_text("no image, and so left out and not used")
    lines = ["a.png,cat", "b.png,dog", "c.png,cat", "c.png,dog", "e.png,cat", "e.png,dog"]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    train = folder(tmp_path, labels="labels.csv").train
    assert train.files == ("a.png", "b.png", "c.png", "d.png") and train.labels.tolist() == [0, 1, -1, -1]
    said = {text: files for text, files in train.issues.items() if "labels" in text}
    assert said == {"has several labels in the label file ('cat' and 'dog'); used without a label": ("c.png",)}
    assert [name for name, _ in train.skipped] == ["e.png"]


def test_csv_that_is_missing_or_no_text(tmp_path: Path) -> None:
    put(tmp_path / "a.png")
    with pytest.raises(UserError, match="no labels file"):
        folder(tmp_path, labels="labels.csv")
    (tmp_path / "labels.csv").write_bytes(b"\xff\xfe,\xfa")
    with pytest.raises(UserError, match="is not UTF-8"):
        folder(tmp_path, labels="labels.csv")


def test_bad_pool_images_are_skipped_with_their_reasons(pets: Path) -> None:
    pool = pets / "unlabeled"
    (pool / "empty.jpg").write_bytes(b"")
    (pool / "text.jpg").write_text("hello")
    whole = put(pool / "whole.png").read_bytes()
    (pool / "half.png").write_bytes(whole[: len(whole) // 2])
    (pool / "photo.heic").write_bytes(b"\0\0\0\x18ftypheic")
    train = folder(pets).train
    assert len(train) == 6 and train.files is not None and "unlabeled/whole.png" in train.files
    assert len(train.labels) == len(train.files) == 6
    reasons = dict(train.skipped)
    assert list(reasons) == [f"unlabeled/{name}" for name in ("empty.jpg", "half.png", "photo.heic", "text.jpg")]
    assert reasons["unlabeled/empty.jpg"] == "the file is empty"
    assert reasons["unlabeled/half.png"].startswith("damaged image")
    assert train.images[train.files.index("unlabeled/x.png"), 0, 0, 0] == 40


def test_bad_labelled_image_stops(pets: Path) -> None:
    (pets / "dog" / "bad.jpg").write_text("hello")
    with pytest.raises(UserError, match=r"dog/bad\.jpg cannot be read .*; replace it or remove it"):
        folder(pets)


def test_bad_image_that_gets_a_label_later_stops_although_cached(pets: Path) -> None:
    (pets / "unlabeled" / "bad.jpg").write_text("hello")
    (pets / "one.csv").write_text("cat/b.png,cat\ndog/c.bmp,dog\n")
    (pets / "two.csv").write_text("cat/b.png,cat\ndog/c.bmp,dog\nunlabeled/bad.jpg,dog\n")
    assert len(folder(pets, labels="one.csv").train.skipped) == 1
    with pytest.raises(UserError, match=r"unlabeled/bad\.jpg cannot be read"):
        folder(pets, labels="two.csv")


def test_more_labels_do_not_decode_again(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pets / "one.csv").write_text("cat/b.png,cat\ndog/c.bmp,dog\n")
    (pets / "two.csv").write_text("cat/b.png,cat\ndog/c.bmp,dog\nunlabeled/x.png,owl\n")
    folder(pets, labels="one.csv")
    monkeypatch.delattr(store, "decode_stream")
    assert folder(pets, labels="two.csv").train.labels.tolist() == [0, -1, 1, -1, 2]


def test_changed_image_is_read_again(pets: Path) -> None:
    assert folder(pets).train.images[0, 0, 0, 0] == 10
    put(pets / "cat" / "b.png", 99)
    os.utime(pets / "cat" / "b.png", ns=(1, 1))
    assert folder(pets).train.images[0, 0, 0, 0] == 99


def test_all_grey_is_one_channel(tmp_path: Path) -> None:
    put(tmp_path / "a" / "1.png", 5, "L")
    put(tmp_path / "b" / "1.png", 6, "L")
    (tmp_path / "unlabelled").mkdir()
    (tmp_path / "unlabelled" / "bad.png").write_bytes(b"")
    train = folder(tmp_path).train
    assert train.images[:, 3, 3].tolist() == [[5], [6]]
    put(tmp_path / "b" / "2.png", 6)
    assert folder(tmp_path).train.images.shape == (3, 32, 32, 3)


def test_test_folder_also_inside_the_root(pets: Path) -> None:
    put(pets / "test" / "dog" / "t.png", 70)
    test = folder(pets, test=str(pets / "test")).test
    assert test is not None and test.files == ("dog/t.png",) and test.labels.tolist() == [1]
    assert test.images[0, 0, 0].tolist() == [70, 185, 7]
    train = folder(pets, test=str(pets / "test")).train
    assert train.class_names == ("cat", "dog") and len(train) == 5
    (pets / "labels.csv").write_text("cat/b.png,cat\ndog/c.bmp,dog\n")
    assert len(folder(pets, labels="labels.csv", test=str(pets / "test")).train) == 5


def test_wrong_test_folders(pets: Path) -> None:
    other = pets.parent / "test"
    with pytest.raises(UserError, match="There is no folder"):
        folder(pets, test=str(other))
    other.mkdir()
    with pytest.raises(UserError, match="holds no images"):
        folder(pets, test=str(other))
    put(other / "dogs" / "a.png")
    with pytest.raises(UserError, match=r"'dogs' .*Did you mean 'dog'"):
        folder(pets, test=str(other))
    (other / "dogs").rename(other / "dog")
    (other / "dog" / "bad.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"dog/bad\.png cannot be read"):
        folder(pets, test=str(other))
    with pytest.raises(UserError, match="leave out --holdout "):
        folder(pets, test=str(other), test_holdout=1)


def test_holdout_takes_labelled_images_only(tmp_path: Path) -> None:
    for i in range(6):
        put(tmp_path / "cat" / f"{i}.png")
        put(tmp_path / "dog" / f"{i}.png")
        put(tmp_path / "unlabelled" / f"{i}.png")
    dataset = folder(tmp_path, test_holdout=4)
    assert dataset.test is not None and dataset.test.files is not None and dataset.train.files is not None
    assert len(dataset.test) == 4 and len(dataset.train) == 14
    assert not set(dataset.test.files) & set(dataset.train.files)
    assert (dataset.test.labels >= 0).all()
    assert np.bincount(dataset.test.labels).tolist() == [2, 2]
    with pytest.raises(UserError, match="of 12 labelled images 8 can be held out, since every class keeps two"):
        folder(tmp_path, test_holdout=9)


def test_holdout_is_stratified_by_the_largest_remainder() -> None:
    labels = np.repeat([0, 1, 2, 3, -1], [50, 30, 17, 3, 40])
    rows = choose_holdout(labels, 10)
    assert np.bincount(labels[rows]).tolist() == [5, 3, 2]  # quotas 5, 3, 1.7 and 0.3
    assert np.array_equal(rows, np.sort(rows)) and np.array_equal(rows, choose_holdout(labels, 10))
    assert set(rows.tolist()) != set(range(5)) | {50, 51, 52, 80, 81}  # drawn at random within a class


def test_holdout_leaves_two_labels_of_every_class_or_the_only_one() -> None:
    labels = np.repeat([0, 1, 2, 3], [1, 2, 3, 20])
    rows = choose_holdout(labels, 19)
    assert np.bincount(labels[rows], minlength=4).tolist() == [0, 0, 1, 18]
    with pytest.raises(UserError, match=r"--holdout 20 .*is too large.* 19 can be held out.*label more images"):
        choose_holdout(labels, 20)


@pytest.mark.parametrize("holdout", [None, 1])
def test_originals_are_the_files_of_the_rows(holdout: int | None, pets: Path) -> None:
    """Under whatever name, without what cannot be read or is held out."""
    (pets / "unlabeled" / "broken.png").write_bytes(b"no image")
    put(pets / "dog" / "another.png", 35)
    put(pets / "dog" / "third.png", 36)
    put(pets / "unlabeled" / os.fsdecode(b"caf\xe9.png"), 60)
    train = folder(pets, test_holdout=holdout, image_size=16).train
    assert train.originals is not None and len(train) == 8 - (holdout or 0)
    for _ in range(2):
        again = np.stack([decode(original, 16, 3) for original in train.originals()])
        assert np.array_equal(again, train.images)


def test_folders_one_cannot_learn_from(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--root"):
        load(DataConfig(name="folder"))
    with pytest.raises(UserError, match="There is no folder"):
        folder(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no images"):
        folder(tmp_path)
    put(tmp_path / "cat" / "a.png")
    with pytest.raises(UserError, match=r"at least two classes.*only 'cat'"):
        folder(tmp_path)
    (tmp_path / "dog").mkdir()
    with pytest.raises(UserError, match=r"class folder .*dog holds no image"):
        folder(tmp_path)


def test_a_folder_cut_into_parts_is_not_taken_for_classes(tmp_path: Path) -> None:
    for part in ("train", "test"):
        put(tmp_path / part / "cat" / "a.png")
        put(tmp_path / part / "dog" / "a.png")
    with pytest.raises(UserError, match=r"--root .*train and --test"):
        folder(tmp_path)
    put(tmp_path / "bus" / "a.png")  # now they are vehicles and examinations
    assert folder(tmp_path).train.class_names == ("bus", "test", "train")


def test_the_list_of_images_is_sorted_and_relative(pets: Path) -> None:
    assert list(find_images(pets / "cat").files) == ["b.png", "deep/er/a.png"]


def test_one_scan_serves_probe_and_load(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a second walk, nor a second stat of a file, nor a second parse of the label file."""
    put(pets / "test" / "dog" / "t.png", 70)
    (pets / "labels.csv").write_text("cat/b.png,cat\ndog/c.bmp,dog\n")
    config = DataConfig(name="folder", root=str(pets), labels="labels.csv", test=str(pets / "test"))
    expected, probe = load(config), probe_dataset(config)
    index = scan_folder(config)
    assert index is not None and index.test is not None and index.test.files == ("dog/t.png",)
    assert index.stats[0] == (os.stat(pets / "cat" / "b.png").st_size, os.stat(pets / "cat" / "b.png").st_mtime_ns)
    for name in ("os.walk", "unissl.data.folder.index.read_label_file", "unissl.utils.cache.size_and_time"):
        monkeypatch.setattr(name, None)
    assert probe_dataset(config, index) == probe
    dataset = load_data(config, SplitConfig(kind="given"), index)
    assert dataset.train.files == expected.train.files and dataset.train.content == expected.train.content
    assert dataset.test is not None and dataset.test.labels.tolist() == [1]
    with pytest.raises(ValueError, match="another folder"):
        load(config.model_copy(update={"root": str(pets / "cat")}), index)


def test_data_that_are_no_folder_have_no_index() -> None:
    assert scan_folder(DataConfig(name="digits")) is None


def test_every_folder_table_has_a_content_hash_of_its_own(tmp_path: Path) -> None:
    for number in range(6):
        put(tmp_path / "cat" / f"{number}.png", number)
        put(tmp_path / "dog" / f"{number}.png", 100 + number)
    whole, limited = folder(tmp_path, test_holdout=4), folder(tmp_path, test_holdout=4, test_limit=2)
    mixed = load_data(
        DataConfig(name="folder", root=str(tmp_path)), SplitConfig(ood_data="folder", ood_root=str(tmp_path))
    )
    tables = (whole.train, whole.test, limited.test, mixed.train, folder(tmp_path).train)
    hashes = {table.content for table in tables if table is not None}
    assert None not in hashes and len(hashes) == 5


@pytest.mark.parametrize(("one", "other"), [("Hat", "hat"), ("top hat", "top  hat"), ("top hat", "Tophat")])
def test_classes_that_differ_only_in_case_or_spaces_are_refused(tmp_path: Path, one: str, other: str) -> None:
    """In class folders and in label files alike; and a test folder must have the class as it is."""
    first, second = sorted((one, other))
    sentence = f"has the classes {first!r} and {second!r}, which differ only in case or spaces; write them alike"
    for number, name in enumerate((one, other, "shoe")):
        put(tmp_path / "photos" / name / f"{number}.png")
    with pytest.raises(UserError, match=sentence):
        folder(tmp_path / "photos")
    (tmp_path / "labels.csv").write_text(f"{one}/0.png,{one}\n{other}/1.png,{other}\n")
    with pytest.raises(UserError, match=sentence):
        folder(tmp_path / "photos", labels=str(tmp_path / "labels.csv"))
    put(tmp_path / "test" / other / "a.png")
    (tmp_path / "labels.csv").write_text(f"{one}/0.png,{one}\n{other}/1.png,shoe\n")
    with pytest.raises(UserError, match=rf"has a class {other!r} .*Did you mean {one!r}"):
        folder(tmp_path / "photos", labels=str(tmp_path / "labels.csv"), test=str(tmp_path / "test"))


@pytest.mark.parametrize("name", ["photos.zip", "photos.tar.gz", "photos.TAR"])
def test_an_archive_in_place_of_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"packed")
    with pytest.raises(UserError, match=rf"{name} is an archive; unpack it and give the folder instead"):
        folder(tmp_path / name)


def test_an_image_in_place_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.png is a file; give the folder that holds the images instead"):
        folder(put(tmp_path / "a.png"))


@pytest.mark.parametrize("name", ["a.png", "unlabelled/a.png", "Unlabeled/a.png"])
def test_images_without_class_folders_and_label_file(tmp_path: Path, name: str) -> None:
    put(tmp_path / name)
    with pytest.raises(
        UserError, match=r"has no class folders; put .*subfolder per class, or give --labels labels\.csv"
    ):
        folder(tmp_path)
