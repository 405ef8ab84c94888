"""``unissl report``: from a run folder to one page, with and without the images."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import html5lib
import pytest
from cli_helpers import QUICK, Refuses, call, make_photos, succeed

PhotoRun = tuple[Path, str]


def read_page(path: Path) -> str:
    """The page's text; it must parse without a single error and ask the network for nothing."""
    page = path.read_text(encoding="utf-8")
    tree = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)
    for element in tree.iter():
        for name, value in element.attrib.items() if isinstance(element.tag, str) else ():
            if name in ("src", "href"):
                assert value.startswith(("#", "data:image/"))
    assert "<script" not in page and "<link" not in page
    return " ".join(" ".join(tree.find("body").itertext()).split())


def test_photos_with_their_reference(photo_run: PhotoRun) -> None:
    said = succeed("report", photo_run[0]).out
    page = photo_run[0] / "report.html"
    assert f"written to {page}" in said and "without images" not in said
    text = read_page(page)
    summary = json.loads((photo_run[0] / "summary.json").read_text())
    assert f"SAGE: test accuracy {100 * summary['accuracy']['last']:.1f} %" in text
    assert "What the pool was worth" in text and "same test images" in text
    assert "Only 6 test images" in text and "cat" in text
    images = page.read_text().count("data:image/jpeg")  # from the files, larger than the 8 pixels trained on
    assert images >= 6
    succeed("report", photo_run[0])  # made again, it replaces itself


def test_digits_without_reference_to_a_named_file(finished_run: Path, here: Path) -> None:
    succeed("report", finished_run, "--out", "digits.html")
    text = read_page(here / "digits.html")
    assert "SAGE on digits" in text and "The truth is known here" in text and "Labels only" not in text
    assert not (finished_run / "report.html").exists()


def test_images_that_are_gone_or_changed(here: Path) -> None:
    make_photos(here / "photos")
    succeed("train", "--data", "photos", "--no-baseline", "--quiet", *QUICK, "--out", "run")
    assert "the run had no test images" in read_after_report(here)
    (here / "photos" / "unlabeled" / "0.png").rename(here / "photos" / "unlabeled" / "00.png")
    assert "The images have changed since the run" in read_after_report(here)
    shutil.rmtree(here / "photos")
    assert "without images: There is no folder photos" in succeed("report", "run").out
    text = read_page(here / "run" / "report.html")
    assert "This report is without images." in text and "What the pool is made of" in text


def read_after_report(here: Path) -> str:
    succeed("report", "run")
    return read_page(here / "run" / "report.html")


def test_a_damaged_model_still_leaves_a_page(finished_run: Path, here: Path) -> None:
    shutil.copytree(finished_run, here / "run")
    (here / "run" / "model.safetensors").write_bytes(b"no tensors")
    assert "is damaged" in succeed("report", "run").out
    assert "This report is without images." in read_page(here / "run" / "report.html")


def test_refused(finished_run: Path, cut_off_run: Path, refuses: Refuses, here: Path) -> None:
    refuses("report", "nowhere", says=("nowhere holds no finished run", "train one"))
    refuses("report", cut_off_run, says=("holds no finished run", "--resume"))
    (here / "page.html").write_text("mine")
    refuses("report", finished_run, "--out", "page.html", says=("page.html exists already", "--out"))
    refuses("report", finished_run, "--out", "no/such/page.html", says=("Cannot write", "--out"))


@pytest.mark.parametrize("words", [("report",), ("report", "a", "b")])
def test_wrong_command_lines(words: tuple[str, ...]) -> None:
    assert call(*words).code == 2


def test_help_shows_an_example() -> None:
    assert "Example: unissl report" in succeed("report", "--help").out
