"""The whole page of made-up runs: valid, small, silent on the network, and right about what it does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_checks import assert_loads_nothing, assert_sound, parsed

from unissl.evaluate.predict import Predictions
from unissl.record import RunFolder, write_json, write_text
from unissl.report import html
from unissl.report.galleries import Album
from unissl.report.html import Record, Seen, render
from unissl.types import ImageTable, Split

MEGABYTES = 1_000_000
HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=y>', "{{ 7 * 7 }}", "odd\x01\udce4&amp;"]


def make_record(
    place: Path, names: list[str], *, pool: int = 60, test: int = 40, truth: bool = False, reference: bool = False
) -> Record:
    """A finished run with random results."""
    rng, classes = np.random.default_rng(0), len(names)
    folder = RunFolder(place)
    folder.create()
    write_text(folder.config, '[data]\nname = "folder"\nroot = "<b>photos</b>"\n')
    write_json(folder.manifest, {"unissl": "1", "width": 8, "height": 8, "channels": 3})
    summary: dict[str, Any] = {
        **{"method": "sage", "data": "folder", "net": "small", "seed": 3, "steps": 1000, "config": "abc"},
        **{"class_names": names, "labelled": [4] * classes, "test_images": test, "parameters": 10, "seconds": 61.0},
        "skipped": [{"file": "<i>broken</i>\udce4.jpg", "reason": "not an image"}],
        "warnings": ["Only 1 of 2 <classes>."],
    }
    metrics: list[dict[str, Any]] = [
        {"kind": "train", "step": s, "loss": {"sup": 1 / s}, "logs": {"selected": 0.5}} for s in (1, 2, 3)
    ]
    if test:
        matrix = rng.multinomial(test, np.ones(classes**2) / classes**2).reshape(classes, classes)
        right = float(matrix.trace() / test)
        summary |= {
            "confusion_matrix": matrix.tolist(),
            "accuracy": {"last": right, "best": right, "mean_last_20": right},
        }
        summary |= {"balanced_accuracy": 0.5, "per_class_recall": [None] * classes}
        metrics += [{"kind": "eval", "step": s, "accuracy": right} for s in (1, 2, 3)]
    columns = None
    if pool:
        given = rng.integers(0, classes, pool)
        confidence = rng.random(pool).astype(np.float32)
        columns = {"row": np.arange(pool), "class_index": given, "confidence": confidence, "outlier": 1 - confidence}
        predicted = np.bincount(given, minlength=classes).tolist()
        known = {"accuracy": 0.5, "true_positives": predicted, "truth": predicted} if truth else {}
        summary["pool"] = {
            "images": pool,
            "mean_confidence": 0.5,
            "predicted": predicted,
            "truth_known": truth,
            **known,
        }
    beside = make_record(place / "labels-only", names, pool=pool, test=test) if reference else None
    return Record(folder, {"data": {"name": "folder", "root": "<b>photos</b>"}}, summary, metrics, columns, beside)


def make_seen(record: Record, size: int, points: int = 30) -> Seen:
    """Random answers about random images: noise is the hardest to compress."""
    rng, classes = np.random.default_rng(1), len(record.names)
    rows = 0 if record.pool is None else len(record.pool["row"])
    images = np.lib.stride_tricks.as_strided(  # overlapping windows of noise: many images in little memory
        rng.integers(0, 256, size * size * 3 + rows + classes, dtype=np.uint8),
        (rows + classes, size, size, 3),
        (1, size * 3, 3, 1),
    )
    names = tuple(record.names)
    table = ImageTable(images, np.zeros(len(images), np.int64), names, tuple(f"<p>{i}.jpg" for i in range(len(images))))
    probs = rng.dirichlet(np.ones(classes), classes).astype(np.float32)
    pool_probs = rng.dirichlet(np.ones(classes), points).astype(np.float32)
    tested = record.summary["test_images"]
    return Seen(
        Album(table, None),
        *(np.arange(rows, rows + classes), np.arange(classes)),
        *(Predictions(probs), rng.normal(size=(classes, 6)).astype(np.float32)),
        *(Predictions(pool_probs) if rows else None, rng.normal(size=(points if rows else 0, 6)).astype(np.float32)),
        *(rng.random(tested).astype(np.float32), rng.random(tested) < 0.8),
        None if record.reference is None or not tested else rng.random(tested) < 0.5,
    )


@pytest.fixture(autouse=True)
def cheap_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points anywhere: where t-SNE puts them is not what these tests are about."""
    monkeypatch.setattr(html, "flatten", lambda features: np.random.default_rng(0).random((len(features), 2)))


def text_of(page: str) -> str:
    return " ".join(" ".join(parsed(page).find("body").itertext()).split())


@pytest.mark.parametrize("names", [["cat", "dog"], HOSTILE, [f"class number {i}" for i in range(1000)]])
@pytest.mark.parametrize("images", [True, False])
def test_any_number_of_classes_and_any_names(tmp_path: Path, names: list[str], images: bool) -> None:
    record = make_record(tmp_path, names, pool=8 * len(names), reference=True)
    page = render(record, make_seen(record, 8) if images else None, "" if images else "The <folder> is gone.")
    assert_loads_nothing(page)
    assert_sound(page)
    assert len(page.encode()) < 5 * MEGABYTES
    assert (page.count("data:image/") > 0) == images
    assert ("without images. The <folder> is gone." in text_of(page)) != images


def test_names_are_shown_as_they_are_and_never_run(tmp_path: Path) -> None:
    record = make_record(tmp_path, HOSTILE)
    page = render(record, make_seen(record, 8), "")
    said = text_of(page)
    assert "<script>alert(1)</script>" in said and "{{ 7 * 7 }}" in said and "odd\ufffd\ufffd&amp;" in said
    assert "<script" not in page and "onerror=y>" not in page and "<i>broken</i>\ufffd.jpg not an image" in said
    assert "Only 1 of 2 <classes>." in said and "SAGE on <b>photos<" not in page


@pytest.mark.parametrize("size", [32, 128])
def test_under_five_megabytes_for_a_large_pool_even_of_noise(tmp_path: Path, size: int) -> None:
    record = make_record(tmp_path, [f"class {i}" for i in range(100)], pool=12_000, test=2_000, reference=True)
    page = render(record, make_seen(record, size, points=1_900), "")
    assert page.count("data:image/") > 200
    assert len(page.encode()) < 5 * MEGABYTES
    assert_loads_nothing(page)


def test_headline_with_and_without_labels_only(tmp_path: Path) -> None:
    alone = make_record(tmp_path / "alone", ["cat", "dog"])
    said = text_of(render(alone, make_seen(alone, 8), ""))
    assert "SAGE: test accuracy" in said and "What the pool was worth" not in said and "Balanced accuracy" in said
    both = make_record(tmp_path / "both", ["cat", "dog"], reference=True)
    said = text_of(render(both, make_seen(both, 8), ""))
    gain = html.headline(both, make_seen(both, 8))["gain_interval"]
    assert "Labels only, without the pool" in said
    assert f"95 % interval {100 * gain.low:+.1f} to {100 * gain.high:+.1f}, same test images" in said
    assert "no interval, since the test images are not at hand" in text_of(render(both, None, "gone"))


def test_without_test_images_no_accuracy_is_claimed(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"], test=0)
    page = render(record, make_seen(record, 8), "")
    assert_sound(page)
    said = text_of(page)
    assert "the run had no test images" in said and "--holdout" in said
    assert not [
        word for word in ("test accuracy", "Test accuracy", "Confusion", "Reliability", "recall") if word in said
    ]


@pytest.mark.parametrize("truth", [True, False])
def test_truth_of_the_pool_is_told_only_where_it_is_known(tmp_path: Path, truth: bool) -> None:
    record = make_record(tmp_path, ["cat", "dog"], truth=truth)
    said = text_of(render(record, make_seen(record, 8), ""))
    assert ("training never saw it: 50.0 % are right" in said) == truth
    assert ("Their truth is not known" in said) != truth


def test_without_a_pool(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"], pool=0)
    page = render(record, make_seen(record, 8), "")
    assert_sound(page)
    assert "What the pool is made of" not in page and "none of these" not in page


def test_reproducibility_card_and_duplicates(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"])
    copies = [{"part": "test", "row": 0, "label": 1}, {"part": "labelled", "row": 3, "label": 0, "file": "a<b>.jpg"}]
    record.summary["duplicates"] = [{"kind": "exact", "copies": copies}]  # type: ignore[index]
    said = text_of(render(record, None, "gone"))
    for fact in ("seed 3", "configuration abc", 'name = "folder"', "unissl train --config config.toml", "torch 2."):
        assert fact in said
    assert "exact row 0 (test = dog), a<b>.jpg (labelled = cat) test image learnt from; labels disagree" in said
    assert "Test images are learnt from in 1 case" in said and "different labels in 1 case" in said


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"], reference=True)
    assert render(record, make_seen(record, 8), "") == render(record, make_seen(record, 8), "")


def test_sample_keeps_labels_with_their_rows_and_stays_small() -> None:
    labels = np.arange(5000) % 7
    split = Split(np.arange(10_000, 15_000), labels, np.arange(10_000), 7)
    rows, given, pool = html.sample(split)
    assert len(rows) == html.MOST_LABELLED and np.array_equal(given, labels[rows - 10_000])
    assert len(pool) == html.MAP_IMAGES // 2 and len(set(pool.tolist())) == len(pool)
    few = html.sample(Split(np.arange(4), np.array([0, 1, 0, 1]), np.arange(4, 10), 2))
    assert few[0].tolist() == [0, 1, 2, 3] and few[2].tolist() == [4, 5, 6, 7, 8, 9]
