"""A folder with every kind of issue trains, and its report lists each."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import html5lib
import numpy as np
from cli_helpers import QUICK, make_photos, picture, succeed
from PIL import Image

SKIPPED = {
    "text.jpg": "not an image that Pillow can read",
    "empty.png": "the file is empty",
    "cut.png": "damaged image",
    "phone.heic": "HEIC, which Pillow cannot read",
    "drawing.svg": "an SVG drawing",
    "camera.NEF": "a raw file of a camera",
    "gone.png": "the file does not exist",
    "ring.png": "symbolic links",
    "circle": "a link to a folder",
    "folder.jpg": "a folder, not an image",
    "pipe.png": "a pipe or device",
    "huge.png": "more than 100 megapixels (12000 x 12000)",
    "no permission.png": "Permission denied",
    "closed": "folder that may not be read",
}
LONG = "l" * 240
ISSUES = {
    "black.png": "one colour everywhere",
    "pixel.png": "less than 16 pixels wide or high",
    "thin.png": "more than four times as long as wide",
    "moving.gif": "only the first is used",
    "pages.tif": "only the first is used",
    "clear.png": "partly transparent",
    "print.jpg": "CMYK; converted to RGB",
    "deep.png": "more than 8 bits per channel",
    "float.tif": "more than 8 bits per channel",
    "turned.jpg": "according to its EXIF orientation",
    "large.jpg": "more than 16 megapixels",
    "a jpeg.png": "its suffix does not match its format",
    "no suffix": "its suffix does not match its format",
    "éñ 猫.png": "letters beyond ASCII",
    f"{LONG}.png": "longer than 100 characters",
    "two\nlines.png": "a line break",
    "cat/3.png": "has several labels in the label file ('cat' and 'dog'); used without a label",
    "dog/3.png": "has several labels in the label file ('dog' and none); used without a label",
}


def make_unreadable(pool: Path) -> None:
    (pool / "text.jpg").write_text("not an image")
    (pool / "empty.png").write_bytes(b"")
    whole = (pool / "0.png").read_bytes()
    (pool / "cut.png").write_bytes(whole[: len(whole) // 2])
    (pool / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    (pool / "drawing.svg").write_text('<?xml version="1.0"?>\n<svg width="9"/>')
    (pool / "camera.NEF").write_bytes(whole)
    (pool / "gone.png").symlink_to(pool / "nowhere")
    (pool / "ring.png").symlink_to(pool / "ring.png")
    (pool / "circle").symlink_to(pool.parent)
    (pool / "folder.jpg").mkdir()
    os.mkfifo(pool / "pipe.png")
    Image.new("1", (12_000, 12_000)).save(pool / "huge.png")
    (pool / "no permission.png").write_bytes(whole)
    (pool / "closed").mkdir()


def make_odd(pool: Path) -> None:
    photo = picture(90, seed=5, side=40)
    grey = np.asarray(photo.convert("L"))
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 30)).save(pool / "black.png")
    photo.resize((1, 1)).save(pool / "pixel.png")
    photo.resize((3, 900)).save(pool / "thin.png")
    photo.save(pool / "moving.gif", save_all=True, append_images=[photo.rotate(90)])
    photo.save(pool / "pages.tif", save_all=True, append_images=[photo.rotate(90)])
    photo.convert("LA").point(lambda value: value // 2).save(pool / "clear.png")
    photo.convert("CMYK").save(pool / "print.jpg")
    Image.fromarray(grey.astype(np.uint16) * 257).save(pool / "deep.png")
    Image.fromarray(grey / np.float32(255)).save(pool / "float.tif")
    photo.save(pool / "turned.jpg", exif=exif)
    photo.resize((4001, 4000)).save(pool / "large.jpg")
    photo.save(pool / "a jpeg.png", "JPEG")
    for name in ("no suffix", "éñ 猫.png", f"{LONG}.png", "two\nlines.png"):
        picture(90, seed=len(name), side=40).save(pool / name, "PNG")


def page_of(run: Path) -> Any:
    page = (run / "report.html").read_text(encoding="utf-8")
    return html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page).find("body")


def text_of(part: Any) -> str:
    return " ".join(" ".join(part.itertext()).split())


def test_each_kind_is_reported(here: Path, forbid: Callable[..., None]) -> None:
    photos = make_photos(here / "photos", each=5)
    pool = photos / "unlabeled"
    make_unreadable(pool)
    make_odd(pool)
    forbid("no permission.png", "closed")
    shutil.copy(pool / "1.png", pool / "copy.png")
    labels = [(f"{name}/{i}.png", name) for name in ("cat", "dog") for i in range(5)]
    labels += [("cat/3.png", "dog"), ("dog/3.png", "")]
    (here / "labels.csv").write_text("".join(f"{file},{label}\n" for file, label in [("file", "label"), *labels]))
    words = ("--images", "photos", "--labels", "labels.csv", "--no-baseline", "--set", "train.cv_folds=0")
    outcome = succeed("train", *words, *QUICK, "--set", "data.image_size=16", "--out", "run")
    assert "2 images (such as cat/3.png) have conflicting labels and will be treated as unlabelled" in outcome.err
    assert f"{len(SKIPPED)} files or folders were skipped" in outcome.out
    assert "2 images with conflicting labels were treated as unlabelled; summary.json lists them" in outcome.out
    summary = json.loads((here / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["labelled"] == [4, 4]
    assert summary["pool"]["images"] == 6 + 1 + len(ISSUES)
    reported = {(file, item["issue"]) for item in summary["image_issues"] for file in item["files"]}
    assert all(item["count"] == len(item["files"]) for item in summary["image_issues"])
    names = {name if "/" in name else f"unlabeled/{name}": what for name, what in ISSUES.items()}
    assert [
        name for name in names if not [1 for file, issue in reported if file == name and names[name] in issue]
    ] == []
    page = page_of(here / "run")
    rows, text = [text_of(row) for row in page.iter("tr")], text_of(page)
    for name, reason in ({f"unlabeled/{name}": why for name, why in SKIPPED.items()} | names).items():
        shown = " ".join(name.split())
        assert [row for row in rows if reason in row and shown in row.partition(reason)[2]], f"{name}: {reason}"
    assert "2 files have conflicting labels in the label file" in text
    assert "Some images contain little information" in text
    assert "unlabeled/copy.png (pool)" in text and "have duplicates" in text


def test_duplicates_and_single_labels_are_reported(here: Path) -> None:
    photos = make_photos(here / "photos")
    pool = photos / "unlabeled"
    shutil.copy(photos / "cat" / "0.png", photos / "dog" / "the same.png")
    shutil.copy(pool / "1.png", pool / "éñ 猫 & <copy>.png")
    (photos / "owl").mkdir()
    picture(90, seed=7).save(photos / "owl" / "only.png")
    for number, name in enumerate(("cat", "dog", "owl")):
        (here / "tests" / name).mkdir(parents=True)
        picture(70 * number, seed=50 + number).save(here / "tests" / name / "a.png")
    shutil.copy(pool / "2.png", here / "tests" / "cat" / "leak.png")
    succeed("train", "--data", "photos", "--test", "tests", "--no-baseline", "--quiet", *QUICK, "--out", "run")
    text = text_of(page_of(here / "run"))
    assert "All images could be read." in text
    assert "unlabeled/éñ 猫 & <copy>.png (pool)" in text
    assert "The same image has different labels in 1 case" in text and "dog/the same.png (labelled = dog)" in text
    assert "Test images are also training images in 1 case" in text and "leak.png (test = cat)" in text
    assert "1 image has duplicates" in text
    assert "1 class has a single label" in text and "“owl”" in text
