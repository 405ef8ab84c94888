"""A folder with every kind of trouble trains, and its report tells of each."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import html5lib
from cli_helpers import QUICK, make_photos, picture, succeed

REASONS = {
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
}


def make_trouble(pool: Path) -> None:
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


def test_each_kind_is_told(here: Path) -> None:
    photos = make_photos(here / "photos")
    pool = photos / "unlabeled"
    make_trouble(pool)
    shutil.copy(photos / "cat" / "0.png", photos / "dog" / "the same.png")
    shutil.copy(pool / "1.png", pool / "éñ 猫 & <copy>.png")
    (photos / "owl").mkdir()
    picture(90, seed=7).save(photos / "owl" / "only.png")
    for number, name in enumerate(("cat", "dog", "owl")):
        (here / "tests" / name).mkdir(parents=True)
        picture(70 * number, seed=50 + number).save(here / "tests" / name / "a.png")
    shutil.copy(pool / "2.png", here / "tests" / "cat" / "leak.png")
    succeed("train", "--data", "photos", "--test", "tests", "--no-reference", "--quiet", *QUICK, "--out", "run")
    succeed("report", "run")
    page = (here / "run" / "report.html").read_text(encoding="utf-8")
    tree = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)
    text = " ".join(" ".join(tree.find("body").itertext()).split())
    assert f"{len(REASONS)} files or folders were left out" in text
    for name, reason in REASONS.items():
        assert reason in text and f"unlabeled/{name}" in text, name
    assert "unlabeled/éñ 猫 & <copy>.png (pool)" in text
    assert "The same image has different labels in 1 case" in text and "dog/the same.png (labelled = dog)" in text
    assert "Test images are learnt from in 1 case" in text and "leak.png (test = cat)" in text
    assert "1 image is there more than once" in text
    assert "1 class has a single label" in text and "“owl”" in text
