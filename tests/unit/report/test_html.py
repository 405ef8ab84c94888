"""The whole page of made-up runs: valid, small, silent on the network, and right about what it does not know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_checks import assert_loads_nothing, assert_sound, parsed

from unissl.errors import UserError
from unissl.evaluation.predictions import Predictions
from unissl.report import page_charts as pictures
from unissl.report import samples as evidence
from unissl.report.formatting import signed
from unissl.report.galleries import Thumbnails
from unissl.report.headline import headline
from unissl.report.html import render
from unissl.report.load_run import LabelledPredictions, RunRecord
from unissl.report.outliers import Outliers
from unissl.report.samples import Samples
from unissl.run.schema import Summary, require
from unissl.run_folder import RunFolder, write_json, write_text
from unissl.types import ImageTable, Split

MEGABYTES = 1_000_000
HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=y>', "{{ 7 * 7 }}", "odd\x01\udce4&amp;"]


def make_record(
    place: Path, names: list[str], *, pool: int = 60, test: int = 40, truth: bool = False, reference: bool = False
) -> RunRecord:
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
        columns = {
            "row": np.arange(pool),
            "class_index": given,
            "confidence": confidence,
            "outlier_score": 1 - confidence,
        }
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
    answers = None
    if test:
        truth = np.arange(test) % classes
        said = np.where(rng.random(test) < (0.7 if reference else 0.5), truth, (truth + 1) % classes)
        answers = LabelledPredictions(np.arange(test), truth, said, rng.random(test).astype(np.float32))
    config = {"data": {"name": "folder", "root": "<b>photos</b>"}}
    return RunRecord(folder, config, summary, metrics, columns, answers, beside)


def make_seen(record: RunRecord, size: int, points: int = 30) -> Samples:
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
    return Samples(
        Thumbnails(table, None),
        *(np.arange(rows, rows + classes), np.arange(classes)),
        *(Predictions(probs), rng.normal(size=(classes, 6)).astype(np.float32)),
        *(Predictions(pool_probs) if rows else None, rng.normal(size=(points if rows else 0, 6)).astype(np.float32)),
    )


@pytest.fixture(autouse=True)
def cheap_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points anywhere: where t-SNE puts them is not what these tests are about."""
    monkeypatch.setattr(pictures, "flatten", lambda features: np.random.default_rng(0).random((len(features), 2)))


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
    assert "<script" not in page and "onerror=y>" not in page and "not an image 1 <i>broken</i>\ufffd.jpg" in said
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
    gain = headline(both).gain_interval
    assert gain is not None
    assert "Labels only, without the pool" in said
    assert f"95 % interval {signed(gain.low)} to {signed(gain.high)}, same test images" in said
    forgotten = replace(both, answers=None)
    assert "no interval, since the answers about single images were not kept" in text_of(
        render(forgotten, None, "gone")
    )


def test_an_estimate_by_cross_validation_says_what_it_is(tmp_path: Path) -> None:
    truth = np.repeat([0, 1], 10)
    runs = []
    for name, right in (("ours", 16), ("theirs", 12)):
        record = make_record(tmp_path / name, ["cat", "dog"], test=0)
        record.summary["cross_validation"] = {  # type: ignore[index]
            **{"folds": 4, "labels": 20, "accuracy": right / 20, "low": right / 20 - 0.1, "high": right / 20 + 0.1},
            **{"balanced_accuracy": right / 20, "steps": 600},
        }
        said = np.where(np.arange(20) < right, truth, 1 - truth)
        runs.append(replace(record, answers=LabelledPredictions(np.arange(20), truth, said)))
    page = render(replace(runs[0], reference=runs[1]), make_seen(runs[0], 8), "")
    assert_sound(page)
    said_text = text_of(page)
    for part in (
        "SAGE: estimated accuracy 80.0 % 95 % interval 70.0 % to 90.0 %, on 20 labels left out in turn",
        "Labels only, without the pool 60.0 %",
        "What the pool was worth +20.0 points 95 % interval −2.3 to +38.6, same labels left out",
        "an estimate by cross-validation over the given labels",
        "rather too low than too high",
        "the mix of the given labels",
        "Confusion matrix",
        "Only 20 labels behind the estimate",
    ):
        assert part in said_text, part
    assert "est accuracy" not in said_text and "Reliability" not in said_text
    assert "last stages" not in said_text
    runs[0].summary["distilled"] = True  # type: ignore[index]
    assert "nor were the last stages of its backbone trained further in them" in text_of(
        render(replace(runs[0], reference=runs[1]), make_seen(runs[0], 8), "")
    )


def test_strange_images_are_shown_with_what_makes_them_strange(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"], pool=200)
    flagged = np.arange(200) < 90
    score = np.where(flagged, 0.9, 0.2).astype(np.float32)
    strange = Outliers(score, np.zeros(200, np.int64), flagged, 0.1, by_vectors=True)
    page = render(record, replace(make_seen(record, 8), outsiders=strange), "")
    assert_sound(page)
    said = text_of(page)
    assert "90 of 200 are farther from every class than nine in ten of the labelled images" in said
    assert "90 unlabelled images may be none of the classes" in said and "42 more" in said
    assert page.count("nearest cat") == 48 * 3 + 42 * 2, "caption, alternative text and title of each"


def test_calibration_error_is_that_of_labels_without_a_part_in_the_fit(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"])
    assert "had no part in the calibration" not in text_of(render(record, None, "gone"))
    record.summary["calibration"] = {"ece_after": 0.123, "ece": 0.4}  # type: ignore[index]
    said = text_of(render(record, None, "gone"))
    assert "Expected calibration error: 12.3 %, measured on labels that had no part in the calibration." in said


def test_every_reason_for_leaving_out_files_is_told(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"])
    record.summary["skipped"] = [  # type: ignore[index]
        {"file": f"{i}.jpg", "reason": "the file is empty" if i < 500 else f"reason {'abcdefgh'[i - 500]}"}
        for i in range(508)
    ]
    said = text_of(render(record, None, "gone"))
    assert "508 files or folders were left out" in said and "500 0.jpg, 1.jpg" in said
    assert not [letter for letter in "abcdefgh" if f"reason {letter} 1" not in said]


def test_remarks_on_images_are_told_with_some_of_their_files(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"])
    assert "with a remark" not in text_of(render(record, None, "gone"))
    remarks = [
        {"remark": "turned <upright>", "count": 1200, "files": [f"{i}.jpg" for i in range(1000)]},
        {"remark": "blown up", "count": 1, "files": ["<b>\udce4.png"]},
    ]
    record.summary["image_issues"] = remarks  # type: ignore[index]
    page = render(record, None, "gone")
    assert_sound(page)
    said = text_of(page)
    assert "Images that are used, with a remark; summary.json lists more of them" in said
    assert "turned <upright> 1,200 0.jpg, 1.jpg" in said and "29.jpg, …" in said and "30.jpg" not in said
    assert "blown up 1 <b>" in said


def test_a_damaged_summary_is_refused_or_shown_and_no_traceback(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"])
    require(Summary, record.summary, tmp_path)
    assert "AUROC over 0 unknown test images" in text_of(
        render(replace(record, summary={**record.summary, "auroc": 0.7}), None, "gone")
    )
    pool = {key: value for key, value in record.summary["pool"].items() if key != "mean_confidence"}
    with pytest.raises(UserError, match="mean_confidence"):
        require(Summary, {**record.summary, "pool": pool}, tmp_path)


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
    for fact in ("seed 3", "configuration abc", 'name = "folder"', "unissl train --config config.toml", "unissl 1"):
        assert fact in said
    assert "exact row 0 (test = dog), a<b>.jpg (labelled = cat) test image learnt from; labels disagree" in said
    assert "Test images are learnt from in 1 case" in said and "different labels in 1 case" in said


def test_versions_and_command_of_the_run_are_told(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"])
    record.summary["versions"] = {"torch": "9.9", "threads": 2}  # type: ignore[index]
    record.summary["command"] = "unissl train --images 'my photos'"  # type: ignore[index]
    said = text_of(render(record, None, "gone"))
    assert "torch 9.9" in said and "threads 2" in said
    assert "The command of this run: unissl train --images 'my photos'" in said


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"], reference=True)
    assert render(record, make_seen(record, 8), "") == render(record, make_seen(record, 8), "")


def test_sample_keeps_labels_with_their_rows_and_stays_small() -> None:
    labels = np.arange(5000) % 7
    split = Split(np.arange(10_000, 15_000), labels, np.arange(10_000), 7)
    rows, given, pool = evidence.sample(split)
    assert len(rows) == evidence.MAX_LABELLED and np.array_equal(given, labels[rows - 10_000])
    assert len(pool) == evidence.MAP_IMAGES // 2 and len(set(pool.tolist())) == len(pool)
    few = evidence.sample(Split(np.arange(4), np.array([0, 1, 0, 1]), np.arange(4, 10), 2))
    assert few[0].tolist() == [0, 1, 2, 3] and few[2].tolist() == [4, 5, 6, 7, 8, 9]
