"""Folders of images that cannot be learnt from: one sentence, a code, and nothing written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import TRAIN_PHOTOS, Refuses, make_photos, picture

OUT = ("--out", "run")
BY_CSV = tuple("--images" if word == "--data" else word for word in TRAIN_PHOTOS) + OUT + ("--labels", "labels.csv")


def test_missing_folder(refuses: Refuses) -> None:
    refuses(*TRAIN_PHOTOS[:1], "--images", "photos", *OUT, says=("There is no folder photos", "check the path"))
    refuses(*TRAIN_PHOTOS[:1], "--data", "my/photos", *OUT, says=("There is no folder my/photos", "check the path"))


def test_empty_folder(refuses: Refuses, here: Path) -> None:
    (here / "photos").mkdir()
    refuses(*TRAIN_PHOTOS, *OUT, says=("photos holds no images", "one subfolder per class"))


def test_an_archive_in_place_of_a_folder(refuses: Refuses, here: Path) -> None:
    (here / "photos.zip").write_bytes(b"PK")
    refuses("train", "--images", "photos.zip", *OUT, says=("photos.zip is an archive", "unpack it"))


def test_neither_class_folders_nor_labels(refuses: Refuses, here: Path) -> None:
    (here / "photos").mkdir()
    picture(0, 0).save(here / "photos" / "0.png")
    says = ("photos has no class folders", "one subfolder per class", "--labels labels.csv with the columns file,label")
    refuses("train", "--images", "photos", *OUT, says=says)


def test_classes_that_differ_only_in_case(refuses: Refuses, here: Path) -> None:
    make_photos(here / "photos", classes=("Hat", "hat"))
    refuses("train", "--images", "photos", *OUT, says=("classes 'Hat' and 'hat'", "rename one of them"))


def test_one_class_only(refuses: Refuses, here: Path) -> None:
    make_photos(here / "photos", classes=("cat",))
    refuses(*TRAIN_PHOTOS, *OUT, says=("at least two classes", "only 'cat'", "add another class"))


def test_class_folder_without_an_image(refuses: Refuses, here: Path) -> None:
    (make_photos(here / "photos") / "eel").mkdir()
    refuses(*TRAIN_PHOTOS, *OUT, says=("class folder photos/eel holds no image", "add at least one or remove"))


def test_holdout_that_takes_a_class_away(refuses: Refuses, here: Path) -> None:
    make_photos(here / "photos", each=1)
    refuses(
        *TRAIN_PHOTOS,
        *OUT,
        "--holdout",
        "1",
        says=("of 2 labelled images 0 can be held out", "choose a smaller number"),
    )


def test_fewer_images_than_asked_for(refuses: Refuses, here: Path) -> None:
    make_photos(here / "photos")
    says = ("Class 'cat' has 4 labelled images", "needs 5", "lower labels_per_class")
    refuses(*TRAIN_PHOTOS, *OUT, "--labels-per-class", "5", says=says)


@pytest.mark.parametrize("content", [b"", b"not an image", b"<svg/>"])
def test_labelled_image_that_cannot_be_read(refuses: Refuses, here: Path, content: bytes) -> None:
    (make_photos(here / "photos") / "dog" / "bad.png").write_bytes(content)
    refuses(*TRAIN_PHOTOS, *OUT, says=("labelled image photos/dog/bad.png cannot be read", "replace it or remove it"))


def test_truncated_labelled_image(refuses: Refuses, here: Path) -> None:
    file = make_photos(here / "photos") / "dog" / "0.png"
    file.write_bytes(file.read_bytes()[:-80])
    refuses(*TRAIN_PHOTOS, *OUT, says=("labelled image photos/dog/0.png cannot be read", "truncated"))


def test_no_image_in_the_pool(refuses: Refuses, here: Path) -> None:
    make_photos(here / "photos", pool=0)
    refuses(*TRAIN_PHOTOS, *OUT, says=("no unlabelled image for sage", "--pool-distribution uniform"))


def test_pool_without_truth_for_a_supervised_reference(refuses: Refuses, here: Path) -> None:
    make_photos(here / "photos")
    says = ("supervised learns from the true labels of the pool", "use --method labels-only")
    refuses(*TRAIN_PHOTOS, *OUT, "--method", "fully-supervised", says=says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("file,label\ncat/0.png,cat\ndog/9.png,dog\n", ("Line 3", "'dog/9.png'", "no such file", "correct that line")),
        (
            "file,label\ncat/0.png,cat\ncat/0.png,dog\n",
            ("several labels, 'cat' and 'dog'", "no other image is labelled 'cat'; keep one"),
        ),
        ("cat/0.png\tcat\ncat\\0.PNG\tdog\n", ("gives cat/0.png several labels, 'cat' and 'dog'", "keep one")),
        ("when,who,what\n1,2,3\n", ("needs a header line with the columns file and label", "found: when, who, what")),
        ('"cat/0.png,cat\n', ("labels.csv is not a table of cells", "save it as CSV again")),
        ("file,label\ncat/0.png,cat\n", ("at least two classes", "only 'cat'")),
        ("", ("labels.csv is empty", "a file and a label in each line")),
        (None, ("no labels file labels.csv", "--labels")),
    ],
)
def test_labels_file(refuses: Refuses, here: Path, text: str | None, says: tuple[str, ...]) -> None:
    make_photos(here / "photos")
    if text is not None:
        (here / "labels.csv").write_text(text)
    refuses(*BY_CSV, says=says)


def test_test_folder_with_an_unknown_class(refuses: Refuses, here: Path) -> None:
    make_photos(here / "photos")
    (here / "exam" / "dogg").mkdir(parents=True)
    picture(0, 0).save(here / "exam" / "dogg" / "0.png")
    refuses(*TRAIN_PHOTOS, *OUT, "--test", "exam", says=("a class 'dogg'", "Did you mean 'dog'?"))


def test_split_of_what_is_not_there(refuses: Refuses) -> None:
    refuses("split", "--data", "digits", "--max-count", "1000", says=("Class '0' has 136 images", "lower max_count"))


def test_folder_that_may_not_be_read(refuses: Refuses, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_photos(here / "photos")
    really = os.scandir

    def scandir(path: str | Path) -> Any:
        if Path(path).name == "photos":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return really(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)  # what os.walk is made of
        refuses(*TRAIN_PHOTOS, *OUT, says=("photos may not be read", "change its permissions"))


def test_cache_that_cannot_be_made(refuses: Refuses, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_photos(here / "photos")
    (here / "file").write_text("mine")
    monkeypatch.setenv("UNISSL_CACHE", str(here / "file" / "cache"))
    refuses(*TRAIN_PHOTOS, *OUT, says=("image cache", "cannot be written", "set $UNISSL_CACHE to another"))


def test_full_disk_while_decoding(refuses: Refuses, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_photos(here / "photos")

    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        refuses(*TRAIN_PHOTOS, *OUT, says=("The disk is full at the image cache", "free some space"))
    assert {path.suffix for path in Path(os.environ["UNISSL_CACHE"]).iterdir()} == {".lock"}


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX only")
def test_a_class_whose_name_is_not_unicode(here: Path, refuses: Refuses) -> None:
    make_photos(here / "photos", classes=("cat", os.fsdecode(b"d\xffg")))
    refuses(*TRAIN_PHOTOS, "--out", "run", says=("not Unicode", "d\\udcffg", "rename it"))
