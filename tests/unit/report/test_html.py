"""The whole page of made-up runs: valid, small, silent on the network, and right about what it does not know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_runs import make_record, make_samples
from page_checks import assert_loads_nothing, assert_sound, parsed

from unissl.errors import UserError
from unissl.evaluation.selective import selective_accuracy
from unissl.report import galleries, html, samples
from unissl.report.data import ReportData, headline
from unissl.report.formatting import signed
from unissl.report.html import render
from unissl.report.load_run import LabelledPredictions, RunRecord
from unissl.report.outliers import Outliers
from unissl.report.samples import Samples
from unissl.run.schema import Summary, require
from unissl.types import Split

MEGABYTES = 1_000_000
HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=y>', "{{ 7 * 7 }}", "odd\x01\udce4&amp;"]


@pytest.fixture(autouse=True)
def cheap_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points anywhere: where t-SNE puts them is not what these tests are about."""
    monkeypatch.setattr(html, "project_2d", lambda features: np.random.default_rng(0).random((len(features), 2)))


def page_of(record: RunRecord, samples: Samples | None, no_images_reason: str = "") -> str:
    return render(ReportData.of(record, samples, no_images_reason))


def text_of(page: str) -> str:
    return " ".join(" ".join(parsed(page).find("body").itertext()).split())


@pytest.mark.parametrize("names", [["cat", "dog"], HOSTILE, [f"class number {i}" for i in range(1000)]])
@pytest.mark.parametrize("images", [True, False])
def test_any_number_of_classes_and_any_names(tmp_path: Path, names: list[str], images: bool) -> None:
    record = make_record(tmp_path, names, pool=8 * len(names), baseline=True)
    page = page_of(record, make_samples(record, 8) if images else None, "" if images else "The <folder> is gone.")
    assert_loads_nothing(page)
    assert_sound(page)
    assert len(page.encode()) < 5 * MEGABYTES
    assert (page.count("data:image/") > 0) == images
    assert ("This report has no images. The <folder> is gone." in text_of(page)) != images


def test_names_are_shown_as_they_are_and_never_run(tmp_path: Path) -> None:
    record = make_record(tmp_path, HOSTILE)
    page = page_of(record, make_samples(record, 8), "")
    text = text_of(page)
    assert "<script>alert(1)</script>" in text and "{{ 7 * 7 }}" in text and "odd\ufffd\ufffd&amp;" in text
    assert "<script" not in page and "onerror=y>" not in page and "not an image 1 <i>broken</i>\ufffd.jpg" in text
    assert "Only 1 of 2 <classes>." in text and "SAGE on <b>photos<" not in page


@pytest.mark.parametrize("size", [32, 128])
def test_under_five_megabytes_for_a_large_pool_even_of_noise(tmp_path: Path, size: int) -> None:
    record = make_record(tmp_path, [f"class {i}" for i in range(100)], pool=12_000, test=2_000, baseline=True)
    page = page_of(record, make_samples(record, size, points=1_900), "")
    assert page.count("data:image/") > 200
    assert len(page.encode()) < 5 * MEGABYTES
    assert_loads_nothing(page)


def test_headline_with_and_without_a_baseline(tmp_path: Path) -> None:
    alone = make_record(tmp_path / "alone", ["cat", "dog"])
    text = text_of(page_of(alone, make_samples(alone, 8), ""))
    assert "SAGE: test accuracy" in text and "Gain over" not in text and "Balanced accuracy" in text
    both = make_record(tmp_path / "both", ["cat", "dog"], baseline=True)
    text = text_of(page_of(both, make_samples(both, 8), ""))
    best = headline(both).best_baseline
    assert best is not None and best.interval is not None
    gain = best.interval
    assert "Best baseline: labels-only" in text
    assert f"95 % interval {signed(gain.low)} to {signed(gain.high)}, paired by test image" in text
    without_predictions = replace(both, predictions=None)
    assert "no interval: the run folder has no predictions for single images" in text_of(
        page_of(without_predictions, None, "gone")
    )


def test_an_estimate_by_cross_validation_says_what_it_is(tmp_path: Path) -> None:
    truth = np.repeat([0, 1], 10)
    runs = []
    for name, right in (("ours", 16), ("theirs", 12)):
        record = make_record(tmp_path / name, ["cat", "dog"], test=0)
        record.summary["cross_validation"] = {  # type: ignore[index]
            **{"folds": 4, "labels": 20, "accuracy": right / 20, "low": right / 20 - 0.1, "high": right / 20 + 0.1},
            **{"balanced_accuracy": right / 20, "steps": 600},
            "shipped": {"accuracy": right / 20 + 0.05, "low": right / 20 - 0.05, "high": right / 20 + 0.15},
        }
        predicted = np.where(np.arange(20) < right, truth, 1 - truth)
        runs.append(replace(record, predictions=LabelledPredictions(np.arange(20), truth, predicted)))
    page = page_of(replace(runs[0], baseline=runs[1]), make_samples(runs[0], 8), "")
    assert_sound(page)
    text = text_of(page)
    for part in (
        "SAGE: estimated accuracy 85.0 % 95 % interval 75.0 % to 95.0 %, on 20 labels",
        "Best baseline: labels-only 60.0 %",
        "Gain over the best baseline +20.0 points 95 % interval −2.3 to +38.6, paired by label",
        "estimated by 4-fold cross-validation over the given labels",
        "The folds reach 80.0 %, with fewer labels than the final model;",
        "Baselines and gains are compared on the folds",
        "the class distribution of the given labels",
        "Confusion matrix",
        "Only 20 cross-validated labels",
    ):
        assert part in text, part
    assert "est accuracy" not in text and "Reliability" not in text
    assert "fine-tuning" not in text
    runs[0].summary["distilled"] = True  # type: ignore[index]
    assert "and without fine-tuning; the estimate is corrected" in text_of(
        page_of(replace(runs[0], baseline=runs[1]), make_samples(runs[0], 8), "")
    )


def test_outliers_are_shown_with_their_scores(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"], pool=200)
    flagged = np.arange(200) < 90
    score = np.where(flagged, 0.9, 0.2).astype(np.float32)
    outliers = Outliers(score, np.zeros(200, np.int64), flagged, 0.1, by_features=True)
    page = page_of(record, replace(make_samples(record, 8), outliers=outliers), "")
    assert_sound(page)
    text = text_of(page)
    assert "90 of 200 unlabelled images are farther from every class than nine in ten labelled images" in text
    assert "90 unlabelled images may be outliers" in text and "42 more" in text
    assert page.count("nearest cat") == 48 * 3 + 42 * 2, "caption, alternative text and title of each"


def test_calibration_error_is_the_cross_fitted_one(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"])
    assert "cross-fitted" not in text_of(page_of(record, None, "gone"))
    record.summary["calibration"] = {"ece_after": 0.123, "ece": 0.4}  # type: ignore[index]
    text = text_of(page_of(record, None, "gone"))
    assert "Expected calibration error: 12.3 % (cross-fitted)." in text


def test_every_reason_for_a_skipped_file_is_listed(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"])
    record.summary["skipped"] = [  # type: ignore[index]
        {"file": f"{i}.jpg", "reason": "the file is empty" if i < 500 else f"reason {'abcdefgh'[i - 500]}"}
        for i in range(508)
    ]
    text = text_of(page_of(record, None, "gone"))
    assert "508 files or folders were skipped" in text and "500 0.jpg, 1.jpg" in text
    assert not [letter for letter in "abcdefgh" if f"reason {letter} 1" not in text]


def test_image_issues_are_listed_with_some_of_their_files(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"])
    assert "Images with issues" not in text_of(page_of(record, None, "gone"))
    issues = [
        {"issue": "turned <upright>", "count": 1200, "files": [f"{i}.jpg" for i in range(1000)]},
        {"issue": "blown up", "count": 1, "files": ["<b>\udce4.png"]},
    ]
    record.summary["image_issues"] = issues  # type: ignore[index]
    page = page_of(record, None, "gone")
    assert_sound(page)
    text = text_of(page)
    assert "Images with issues, which are used all the same; summary.json lists more of them" in text
    assert "turned <upright> 1,200 0.jpg, 1.jpg" in text and "29.jpg, …" in text and "30.jpg" not in text
    assert "blown up 1 <b>" in text


def test_a_damaged_summary_is_refused_or_shown_and_no_traceback(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"])
    require(Summary, record.summary, tmp_path)
    assert "on 0 out-of-distribution test images" in text_of(
        page_of(replace(record, summary={**record.summary, "auroc": 0.7}), None, "gone")
    )
    pool = {key: value for key, value in record.summary["pool"].items() if key != "mean_confidence"}
    with pytest.raises(UserError, match="mean_confidence"):
        require(Summary, {**record.summary, "pool": pool}, tmp_path)


def test_without_test_images_no_accuracy_is_claimed(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"], test=0)
    page = page_of(record, make_samples(record, 8), "")
    assert_sound(page)
    text = text_of(page)
    assert "the run had no test images" in text and "--holdout" in text
    assert not [
        word for word in ("test accuracy", "Test accuracy", "Confusion", "Reliability", "recall") if word in text
    ]


@pytest.mark.parametrize("truth", [True, False])
def test_true_classes_of_the_pool_are_shown_only_where_known(tmp_path: Path, truth: bool) -> None:
    record = make_record(tmp_path, ["cat", "dog"], truth=truth)
    text = text_of(page_of(record, make_samples(record, 8), ""))
    assert ("not used in training: 50.0 % of the predictions are correct" in text) == truth
    assert ("Their true classes are unknown" in text) != truth


def test_without_a_pool(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"], pool=0)
    page = page_of(record, make_samples(record, 8), "")
    assert_sound(page)
    assert "Class distribution" not in page and "Possible outliers" not in page


def test_reproducibility_card_and_duplicates(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"])
    copies = [{"part": "test", "row": 0, "label": 1}, {"part": "labelled", "row": 3, "label": 0, "file": "a<b>.jpg"}]
    record.summary["duplicates"] = [{"kind": "exact", "copies": copies}]  # type: ignore[index]
    text = text_of(page_of(record, None, "gone"))
    for fact in ("seed 3", "config hash abc", 'name = "folder"', "unissl train --config config.toml", "unissl 1"):
        assert fact in text
    assert "exact row 0 (test = dog), a<b>.jpg (labelled = cat) test image in training; labels disagree" in text
    assert "Test images are also training images in 1 case" in text and "different labels in 1 case" in text


def test_accuracy_at_confidence_thresholds_is_shown(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"])
    assert "confidence threshold" not in text_of(page_of(record, None))
    confidence, pool = np.array([0.4, 0.75, 0.8, 0.85], np.float32), np.array([0.7, 0.99], np.float32)
    rows = selective_accuracy(confidence, np.array([False, True, True, False]), pool)
    record.summary["selective_accuracy"] = [row.to_summary() for row in rows]  # type: ignore[index]
    require(Summary, record.summary, tmp_path)
    page = parsed(page_of(record, None))
    shown = {" ".join(" ".join(row.itertext()).split()) for row in page.iter("tr")}
    assert {"0.5 75 % 67 % 21 to 94 % 100 %", "0.9 0 % – – 50 %"} <= shown


def test_duplicates_are_shown_side_by_side(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"])
    shown = make_samples(record, 8)
    shown = replace(shown, test_thumbnails=replace_table(shown.thumbnails, 5))
    table = [{"part": "test", "row": 2}, {"part": "pool", "row": 4}]
    many = [{"part": "test", "row": row} for row in range(5)] + [{"part": "pool", "row": row} for row in range(5)]
    gone = [{"part": "test", "row": 99}, {"part": "pool", "row": 1}]
    record.summary["duplicates"] = [  # type: ignore[index]
        {"kind": "near", "copies": copies} for copies in (table, many, gone)
    ]
    page = parsed(page_of(record, shown))
    groups = [[image.get("src") for image in copies.iter("img")] for copies in page.iter("ul") if is_copies(copies)]
    assert shown.test_thumbnails is not None
    assert groups[0] == [
        shown.test_thumbnails.tiny([2], [""], galleries.COPY)[0].source,
        shown.thumbnails.tiny([4], [""], galleries.COPY)[0].source,
    ]
    assert [len(group) for group in groups] == [2, galleries.MAX_COPIES, 1]
    assert "thumbnails" not in page_of(record, None) and 'class="copies"' not in page_of(record, None)


def replace_table(thumbnails: galleries.Thumbnails, count: int) -> galleries.Thumbnails:
    table = thumbnails.table
    images, labels = 255 - table.images[:count], table.labels[:count]
    return galleries.Thumbnails(replace(table, images=images, labels=labels, files=None), None)


def is_copies(element: Any) -> bool:
    return bool(element.get("class") == "copies")


def test_versions_and_command_of_the_run_are_shown(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"])
    record.summary["versions"] = {"torch": "9.9", "threads": 2}  # type: ignore[index]
    record.summary["command"] = "unissl train --images 'my photos'"  # type: ignore[index]
    text = text_of(page_of(record, None, "gone"))
    assert "torch 9.9" in text and "threads 2" in text
    assert "The command of this run: unissl train --images 'my photos'" in text


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    record = make_record(tmp_path, ["cat", "dog"], baseline=True)
    assert page_of(record, make_samples(record, 8), "") == page_of(record, make_samples(record, 8), "")


def test_sample_keeps_labels_with_their_rows_and_stays_small() -> None:
    labels = np.arange(5000) % 7
    split = Split(np.arange(10_000, 15_000), labels, np.arange(10_000), 7)
    rows, sampled_labels, pool = samples.sample_rows(split)
    assert len(rows) == samples.MAX_LABELLED and np.array_equal(sampled_labels, labels[rows - 10_000])
    assert len(pool) == samples.MAX_POINTS // 2 and len(set(pool.tolist())) == len(pool)
    few = samples.sample_rows(Split(np.arange(4), np.array([0, 1, 0, 1]), np.arange(4, 10), 2))
    assert few[0].tolist() == [0, 1, 2, 3] and few[2].tolist() == [4, 5, 6, 7, 8, 9]
