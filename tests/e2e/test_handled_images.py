"""Odd images are taken as far as they go; what cannot be read in the pool is left out, counted and listed."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli_helpers import TRAIN_PHOTOS, make_photos, picture, succeed
from PIL import Image

from unissl.data import DataConfig, load

RED = (200, 40, 30)


def png_that_claims(width: int, height: int) -> bytes:
    """A few bytes whose header promises an image that no memory would hold."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    )


def test_bad_images_in_the_pool_are_left_out_counted_and_listed(here: Path) -> None:
    pool = make_photos(here / "photos") / "unlabeled"
    intact = (pool / "0.png").read_bytes()
    (pool / "text.png").write_text("not an image")
    (pool / "empty.jpg").touch()
    (pool / "cut.png").write_bytes(intact[: len(intact) // 2])
    (pool / "huge.png").write_bytes(png_that_claims(100_000, 100_000))
    (pool / "gone.png").symlink_to(here / "nowhere.png")
    outcome = succeed(*TRAIN_PHOTOS, "--out", "run")
    assert "5 files or folders were skipped; summary.json lists them with the reason" in outcome.out
    summary = json.loads((here / "run" / "summary.json").read_text())
    reasons = {entry["file"]: entry["reason"] for entry in summary["skipped"]}
    assert reasons == {
        "unlabeled/cut.png": reasons["unlabeled/cut.png"],
        "unlabeled/empty.jpg": "the file is empty",
        "unlabeled/gone.png": "the file does not exist",
        "unlabeled/huge.png": "more than 100 megapixels",
        "unlabeled/text.png": "not an image that Pillow can read",
    }
    assert "truncated" in reasons["unlabeled/cut.png"]
    assert summary["pool"]["images"] == 6
    rows = pq.read_table(here / "run" / "predictions.parquet").to_pydict()
    assert sorted(rows["file"]) == [f"unlabeled/{i}.png" for i in range(6)]


def test_labels_from_a_spreadsheet_and_a_folder_full_of_trouble(here: Path) -> None:
    """What a spreadsheet writes, beside links in circles, odd names and files that are no images."""
    photos = make_photos(here / "photos")
    rows = [f'"{name}\\{i}";"{name}"' for name in ("cat", "dog") for i in range(4)]
    (here / "labels.csv").write_bytes("\r\n".join(["\ufeffFile Name;Category", *rows, "unlabeled/0.png;"]).encode())
    pool = photos / "unlabeled"
    (pool / "circle").symlink_to(photos)
    (pool / "drawing.svg").write_text("<svg/>")
    (pool / "two\nlines.png").write_bytes((pool / "0.png").read_bytes())
    (pool / "no suffix").write_bytes((pool / "1.png").read_bytes())
    (photos / "__MACOSX").mkdir()
    (photos / "__MACOSX" / "._0.png").write_bytes(b"x")
    words = ["--images" if word == "--data" else word for word in TRAIN_PHOTOS]
    succeed(*words, "--labels", "labels.csv", "--out", "run")
    summary = json.loads((here / "run" / "summary.json").read_text())
    assert summary["labelled"] == [4, 4] and summary["class_names"] == ["cat", "dog"]
    assert summary["pool"]["images"] == 8
    assert [entry["file"] for entry in summary["skipped"]] == ["unlabeled/circle", "unlabeled/drawing.svg"]
    rows = pq.read_table(here / "run" / "predictions.parquet").to_pydict()["file"]
    assert {"unlabeled/two\nlines.png", "unlabeled/no suffix"} < set(rows)


def save_odd(pool: Path, kind: str) -> None:
    plain = Image.new("RGB", (20, 20), RED)
    if kind == "grey":
        Image.new("L", (20, 20), 77).save(pool / "odd.png")
    elif kind == "transparent":
        Image.new("RGBA", (20, 20), (*RED, 0)).save(pool / "odd.png")
    elif kind == "opaque rgba":
        plain.convert("RGBA").save(pool / "odd.png")
    elif kind == "palette":
        plain.convert("P", palette=Image.Palette.ADAPTIVE).save(pool / "odd.png")
    elif kind == "16-bit":
        Image.fromarray(np.full((20, 20), 77 * 257, dtype=np.uint16)).save(pool / "odd.png")
    elif kind == "cmyk":
        Image.new("CMYK", (20, 20), (55, 215, 225, 0)).save(pool / "odd.jpg", quality=100)
    else:
        picture(60, seed=5, side={"small": 3, "large": 90}[kind]).save(pool / "odd.png")


EXPECTED = {
    "grey": (77, 77, 77),
    "transparent": (255, 255, 255),
    "opaque rgba": RED,
    "palette": RED,
    "16-bit": (77, 77, 77),
    "cmyk": RED,
}


@pytest.mark.parametrize(("kind", "colour"), EXPECTED.items())
def test_odd_modes_become_the_colours_they_show(here: Path, kind: str, colour: tuple[int, int, int]) -> None:
    save_odd(make_photos(here / "photos") / "unlabeled", kind)
    table = load(DataConfig(name="folder", root="photos", image_size=8)).train
    assert table.files is not None and not table.skipped
    row = next(i for i, file in enumerate(table.files) if "odd" in file)
    difference = np.abs(table.images[row].astype(int) - colour).max()
    assert difference <= (2 if kind == "cmyk" else 0)  # JPEG is lossy, the others are not


def test_exif_rotation_is_undone(here: Path) -> None:
    """An image stored lying on its side, with the note how to turn it, is seen upright."""
    pool = make_photos(here / "photos") / "unlabeled"
    upright = Image.new("RGB", (8, 8), "black")
    upright.paste("white", (0, 0, 8, 4))  # the upper half
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    upright.transpose(Image.Transpose.ROTATE_90).save(pool / "odd.png", exif=exif)
    table = load(DataConfig(name="folder", root="photos", image_size=8)).train
    assert table.files is not None
    seen = table.images[table.files.index("unlabeled/odd.png")]
    assert (seen[:4] == 255).all() and (seen[4:] == 0).all()


def test_grey_images_alone_give_one_channel(here: Path) -> None:
    for file in make_photos(here / "photos").rglob("*.png"):
        with Image.open(file) as image:
            image.convert("L").save(file)
    assert load(DataConfig(name="folder", root="photos", image_size=8)).train.images.shape[1:] == (8, 8, 1)


def test_training_on_everything_odd_and_a_batch_larger_than_the_pool(here: Path) -> None:
    """Mixed sizes and modes in one pool of 14 images, 40 of which are asked for in every step."""
    pool = make_photos(here / "photos") / "unlabeled"
    for kind in (*EXPECTED, "small", "large"):
        save_odd(pool, kind)
        for odd in pool.glob("odd.*"):
            odd.rename(pool / f"{kind}{odd.suffix}")
    outcome = succeed(*TRAIN_PHOTOS, "--set", "batch.unlabelled=40", "--set", "batch.labelled=30", "--out", "run")
    assert "could not be read" not in outcome.out
    summary = json.loads((here / "run" / "summary.json").read_text())
    assert summary["skipped"] == [] and summary["pool"]["images"] == 14
    assert sum(summary["pool"]["predicted"]) == 14


def test_without_test_images_labels_are_left_out_by_turns(here: Path) -> None:
    make_photos(here / "photos")
    outcome = succeed("train", "--data", "photos", "--out", "run", *TRAIN_PHOTOS[5:])
    output = " ".join(outcome.out.split())
    assert "estimated by cross-validation over 8 labels" in output and "gain over the best baseline" in output
    summary = json.loads((here / "run" / "summary.json").read_text())
    estimate = json.loads((here / "run" / "cross_validation.json").read_text())
    assert summary["cross_validation"]["labels"] == len(estimate["rows"]) == 8
    assert "accuracy" not in summary and (here / "run" / "report.html").exists()
    again = json.loads((here / "run" / "baseline" / "cross_validation.json").read_text())
    assert again["rows"] == estimate["rows"] and again["truth"] == estimate["truth"]  # so that the gain is paired


def test_without_test_images_there_is_no_accuracy_and_the_summary_says_so(here: Path) -> None:
    make_photos(here / "photos")
    outcome = succeed("train", "--data", "photos", "--out", "run", *TRAIN_PHOTOS[5:], "--set", "train.cv_folds=0")
    assert "without test images (--test or --holdout) there is no accuracy" in outcome.out
    assert "points" not in outcome.out
    summary = json.loads((here / "run" / "summary.json").read_text())
    assert summary["test_images"] == 0
    assert not {"accuracy", "balanced_accuracy", "per_class_recall", "confusion_matrix"} & set(summary)
    assert summary["pool"]["truth_known"] is False and "accuracy" not in summary["pool"]
    assert not list((here / "run" / "plots").glob("confusion*"))
