"""``unissl report``: from a run folder to one page, with and without the images."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import html5lib
import pytest
from cli_helpers import QUICK, Refuses, call, make_photos, succeed

from unissl.inference import manifest
from unissl.report import samples

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


def test_photos_with_their_baseline(photo_run: PhotoRun) -> None:
    done = succeed("report", photo_run[0])
    out, root = done.out, tomllib.loads((photo_run[0] / "config.toml").read_text())["data"]["root"]
    assert f"reading what the run's config.toml names: {root}" in done.err
    page = photo_run[0] / "report.html"
    assert f"report: {page}" in out and "no images" not in out
    text = read_page(page)
    summary = json.loads((photo_run[0] / "summary.json").read_text())
    assert f"SAGE: test accuracy {100 * summary['accuracy']['last']:.1f} %" in text
    assert "Gain over the best baseline" in text and "paired by test image" in text
    assert "Only 6 test images" in text and "cat" in text
    images = page.read_text().count("data:image/jpeg")  # from the files, larger than the 8 pixels trained on
    assert images >= 6
    succeed("report", photo_run[0])  # an earlier report is overwritten


def test_everything_is_read_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report at the end of training loads no image again; a later one reads images and manifest once."""
    make_photos(here / "photos")
    loads, manifests = [], []
    load_data, read_json = samples.load_data, manifest.read_json
    monkeypatch.setattr(samples, "load_data", lambda *args: loads.append(1) or load_data(*args))
    monkeypatch.setattr(manifest, "read_json", lambda *args: manifests.append(1) or read_json(*args))
    succeed("train", "--data", "photos", "--no-baseline", "--quiet", *QUICK, "--out", "run")
    assert loads == [] and manifests == [1]
    page = (here / "run" / "report.html").read_bytes()
    assert page.count(b"data:image/") >= 6
    succeed("report", "run")
    assert loads == [1] and manifests == [1, 1]
    assert (here / "run" / "report.html").read_bytes() == page


def test_digits_without_a_baseline_to_a_named_file(finished_run: Path, here: Path) -> None:
    succeed("report", finished_run, "--out", "digits.html")
    text = read_page(here / "digits.html")
    assert "SAGE on digits" in text and "Their true classes are known" in text and "Labels-only" not in text
    assert not (finished_run / "report.html").exists()


def test_images_that_are_gone_or_changed(here: Path) -> None:
    make_photos(here / "photos")
    succeed("train", "--data", "photos", "--no-baseline", "--quiet", *QUICK, "--out", "run")
    assert "The run had no test images" in read_after_report(here)
    (here / "photos" / "unlabeled" / "0.png").rename(here / "photos" / "unlabeled" / "00.png")
    assert "The images have changed since the run" in read_after_report(here)
    shutil.rmtree(here / "photos")
    assert "no images: There is no folder photos" in succeed("report", "run").out
    text = read_page(here / "run" / "report.html")
    assert "This report has no images." in text and "Class distribution of the unlabelled pool" in text


def read_after_report(here: Path) -> str:
    succeed("report", "run")
    return read_page(here / "run" / "report.html")


def test_a_damaged_model_still_leaves_a_page(finished_run: Path, here: Path) -> None:
    shutil.copytree(finished_run, here / "run")
    (here / "run" / "model.safetensors").write_bytes(b"no tensors")
    assert "is damaged" in succeed("report", "run").out
    assert "This report has no images." in read_page(here / "run" / "report.html")


def test_refused(finished_run: Path, cut_off_run: Path, refuses: Refuses, here: Path) -> None:
    refuses("report", "nowhere", says=("nowhere holds no finished run", "train one"))
    refuses("report", cut_off_run, says=("holds no finished run", "--resume"))
    (here / "page.html").write_text("mine")
    refuses("report", finished_run, "--out", "page.html", says=("page.html exists and is not a report", "--out"))
    (here / "folder.html").mkdir()
    refuses("report", finished_run, "--out", "folder.html", says=("folder.html exists and is not a report",))
    refuses("report", finished_run, "--out", "no/such/page.html", says=("Cannot write", "--out"))


def test_an_earlier_report_is_overwritten_and_no_other_file(finished_run: Path, here: Path, refuses: Refuses) -> None:
    succeed("report", finished_run, "--out", "page.html")
    first = (here / "page.html").read_bytes()
    (here / "page.html").write_bytes(first + b"<!-- changed -->")
    succeed("report", finished_run, "--out", "page.html")
    assert (here / "page.html").read_bytes() == first
    (here / "page.html").write_text("<html>mine</html>")
    refuses("report", finished_run, "--out", "page.html", says=("exists and is not a report",))
    shown = " ".join(succeed("report", "--help").out.replace("│", "").split())
    assert "An earlier report is overwritten, any other file is not." in shown


def test_brackets_in_names_are_text(here: Path) -> None:
    """Not markup of the terminal."""
    make_photos(here / "[b]photos", ("cat", "dog"))
    lines = [f"{name}/{i}.png,{label}" for name, label in (("cat", "[x]"), ("dog", "[/b]")) for i in range(4)]
    (here / "labels.csv").write_text("\n".join(["file,label", *lines]))
    words = ("--images", "[b]photos", "--labels", "labels.csv", "--no-baseline", "--quiet", *QUICK)
    assert "run folder: [/red]run" in succeed("train", *words, "--out", "[/red]run").out
    assert "report.html (" in succeed("report", "[/red]run").out
    text = read_page(here / "[" / "red]run" / "report.html")
    assert "SAGE on [b]photos" in text and "[x]" in text and "[/b]" in text
    shutil.rmtree(here / "[b]photos")
    assert "no images: There is no folder [b]photos" in succeed("report", "[/red]run").out


@pytest.mark.parametrize("words", [("report",), ("report", "a", "b")])
def test_wrong_command_lines(words: tuple[str, ...]) -> None:
    assert call(*words).code == 2


def test_help_shows_an_example() -> None:
    assert "Example: unissl report" in succeed("report", "--help").out


def test_a_wrong_backend_in_the_environment(here: Path, finished_run: Path) -> None:
    run = shutil.copytree(finished_run, here / "run")
    command = [sys.executable, "-m", "unissl", "report", run]
    done = subprocess.run(command, env={**os.environ, "MPLBACKEND": "junk"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
