"""Each finding: when it is there and when it is not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_runs import make_record

from unissl.data.folder.labels import CONFLICTING_LABELS
from unissl.data.images.issues import MESSAGES, ImageIssue
from unissl.evaluation.calibration import Bin
from unissl.evaluation.intervals import Interval
from unissl.report import findings
from unissl.report.data import Headline, ReportData, absent_classes
from unissl.report.findings import Finding, all_findings, collect_findings, labels, pool, training
from unissl.report.html import render
from unissl.report.label_issues import LabelIssues
from unissl.report.outliers import Outliers, outliers_by_score
from unissl.run.schema import BaselineScore

NAMES = ["cat", "dog", "owl"]
PAGE = Path(__file__).parents[3] / "docs" / "extend" / "finding.md"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    """A run without findings."""
    record = make_record(tmp_path_factory.mktemp("run"), NAMES, pool=0, test=0)
    return ReportData(replace(record, summary={**record.summary, "skipped": []}))


def with_summary(data: ReportData, **entries: Any) -> ReportData:
    return replace(data, record=replace(data.record, summary={**data.record.summary, **entries}))


def with_pool(data: ReportData, predicted: Sequence[int], names: list[str] = NAMES) -> ReportData:
    labelled = [4] * len(names)
    return with_summary(data, pool={"predicted": predicted}, class_names=names, labelled=labelled)


def with_curve(data: ReportData, curve: Sequence[float], images: int) -> ReportData:
    metrics = [{"kind": "eval", "step": step, "accuracy": value} for step, value in enumerate(curve)]
    return replace(data, record=replace(data.record, metrics=metrics), headline=Headline("test", images))


def by_features(flagged: int, total: int, expected: float = 0.1) -> Outliers:
    return Outliers(np.zeros(total), np.zeros(total, int), np.arange(total) < flagged, expected, by_features=True)


def score(gain: float, interval: Interval | None = None) -> BaselineScore:
    return BaselineScore("labels-only", 0.5, gain, interval)


def gain(data: ReportData, value: float, interval: Interval | None) -> Finding | None:
    return pool.gain_over_baseline(replace(data, headline=Headline("test", 500, baselines=[score(value, interval)])))


def test_collapse(sound: ReportData) -> None:
    found = pool.collapse(with_pool(sound, [3, 97, 0]))
    assert found is not None and found.level == "problem" and "97 %" in found.text and "“dog”" in found.text
    assert pool.collapse(with_pool(sound, [1, 97, 2])) is not None, "also where every class still occurs"
    assert pool.collapse(with_pool(sound, [30, 40, 30])) is None
    assert pool.collapse(with_pool(sound, [8, 90, 2])) is None, "a pool may be one-sided"
    assert pool.collapse(with_pool(sound, [3, 0, 0])) is None, "too small a pool to tell"
    assert pool.collapse(sound) is None, "no pool"


def test_classes_that_are_absent_from_the_pool(sound: ReportData) -> None:
    assert absent_classes([500, 499, 1]) == [2]
    assert absent_classes([50, 45, 5]) == []
    assert absent_classes([7, 7, 0]) == [], "too small a pool to tell"
    found = pool.absent_from_pool(with_pool(sound, [500, 499, 1]))
    assert found is not None and "“owl”" in found.title and found.text.startswith("1 of 1,000")
    names = [f"c{i}" for i in range(20)]
    many = pool.absent_from_pool(with_pool(sound, [0] * 9 + [90] * 11, names))
    assert many is not None and many.title.endswith("“c4” and 4 more") and many.text.startswith("None of 990")


def test_a_collapse_is_not_also_reported_as_absent_classes(sound: ReportData) -> None:
    assert [f.title for f in collect_findings(with_pool(sound, [1000, 0, 0]))] == ["The model has collapsed"]


def test_outliers_by_features(sound: ReportData) -> None:
    found = pool.possible_outliers(replace(sound, outliers=by_features(15, 100)))
    assert found is not None and found.title.startswith("15 unlabelled images") and "Only 10 % of the" in found.text
    assert pool.possible_outliers(replace(sound, outliers=by_features(9, 100))) is None, "no more than of the labelled"
    assert pool.possible_outliers(replace(sound, outliers=by_features(1, 4))) is None
    most = pool.possible_outliers(replace(sound, outliers=by_features(60, 100)))
    assert most is not None and most.title.startswith("60 unlabelled images"), "features are not biased by training"


def test_high_outlier_scores_and_a_model_that_is_confident_of_nothing(sound: ReportData) -> None:
    classes = np.zeros(100, int)
    few, most = np.repeat([0.9, 0.1], [5, 95]), np.repeat([0.9, 0.1], [60, 40])
    images = pool.possible_outliers(replace(sound, outliers=outliers_by_score(few, classes)))
    model = pool.possible_outliers(replace(sound, outliers=outliers_by_score(most, classes)))
    assert images is not None and images.title.startswith("5 unlabelled images")
    assert model is not None and model.title == "The model is not confident about 60 % of the pool"
    assert pool.possible_outliers(replace(sound, outliers=outliers_by_score(np.full(100, 0.1), classes))) is None


def test_gain_over_the_baseline(sound: ReportData) -> None:
    worse = gain(sound, -0.05, Interval(-0.05, -0.08, -0.02))
    assert worse is not None and worse.level == "problem" and "−5.0 points" in worse.text
    unknown = gain(sound, -0.05, None)
    assert unknown is not None and unknown.level == "problem"
    chance = gain(sound, 0.01, Interval(0.01, -0.02, 0.04))
    assert chance is not None and chance.level == "notice" and "−2.0 to +4.0" in chance.text
    assert gain(sound, 0.05, Interval(0.05, 0.02, 0.08)) is None
    assert gain(sound, 0.05, None) is None and pool.gain_over_baseline(sound) is None


def test_too_short(sound: ReportData) -> None:
    rising = list(np.linspace(0.2, 0.8, 20))
    assert training.too_short(with_curve(sound, rising, 1000)) is not None
    assert training.too_short(with_curve(sound, [*rising, *[0.8] * 20], 1000)) is None
    assert training.too_short(with_curve(sound, rising[:4], 1000)) is None
    assert training.too_short(sound) is None


def test_a_rise_that_few_test_images_explain_is_none(sound: ReportData) -> None:
    curve = [0.5] * 4 + [0.6]
    assert training.too_short(with_curve(sound, curve, 16)) is None
    assert training.too_short(with_curve(sound, curve, 400)) is not None


def test_miscalibrated_either_way(sound: ReportData) -> None:
    over = training.miscalibrated(replace(sound, calibration_error=0.3, bins=[Bin(0.9, 0.6, 100)]))
    under = training.miscalibrated(replace(sound, calibration_error=0.4, bins=[Bin(0.4, 0.8, 100)]))
    assert over is not None and over.title == "The model is overconfident" and "30 points" in over.text
    assert under is not None and under.title == "The model is underconfident"
    assert training.miscalibrated(replace(sound, calibration_error=0.05, bins=[Bin(0.9, 0.6, 100)])) is None
    assert training.miscalibrated(sound) is None


def test_few_test_images(sound: ReportData) -> None:
    tested = training.few_test_images(replace(sound, headline=Headline("test", 30)))
    estimated = training.few_test_images(replace(sound, headline=Headline("cross-validation", 30)))
    assert tested is not None and tested.title == "Only 30 test images"
    assert estimated is not None and estimated.title == "Only 30 cross-validated labels"
    assert training.few_test_images(replace(sound, headline=Headline("test", 100))) is None
    assert training.few_test_images(sound) is None


@pytest.mark.parametrize(("count", "level"), [(1, "notice"), (9, "problem")])
def test_possible_label_errors(sound: ReportData, count: int, level: str) -> None:
    leads = np.where(np.arange(40) < count, 0.9, 0.3).astype(np.float32)
    found = labels.possible_label_errors(replace(sound, label_issues=LabelIssues(np.zeros(40, int), leads)))
    assert found is not None and found.level == level and found.title == f"{count} of 40 given labels may be wrong"
    assert labels.possible_label_errors(sound) is None


def test_classes_with_a_single_label(sound: ReportData) -> None:
    found = labels.single_labels(with_summary(sound, labelled=[1, 4, 1]))
    assert found is not None and found.title == "2 classes have a single label" and "“cat” and “owl”" in found.text
    one = labels.single_labels(with_summary(sound, labelled=[4, 1, 4]))
    assert one is not None and one.title == "1 class has a single label"
    assert labels.single_labels(with_summary(sound, labelled=[2, 2, 2])) is None


def test_duplicates_that_matter_and_others(sound: ReportData) -> None:
    def group(*copies: tuple[str, int | None]) -> dict[str, object]:
        return {"kind": "near", "copies": [{"part": part, "row": 0, "label": label} for part, label in copies]}

    harmless = [group(("pool", None), ("pool", None)), group(("labelled", 1), ("labelled", 1), ("pool", None))]
    assert [(f.level, f.title) for f in collect_findings(with_summary(sound, duplicates=harmless))] == [
        ("notice", "2 images have duplicates")
    ]
    leak, clash = group(("test", 1), ("pool", None)), group(("labelled", 1), ("labelled", 0))
    assert [f.title for f in collect_findings(with_summary(sound, duplicates=[leak, leak, clash]))] == [
        "Test images are also training images in 2 cases",
        "The same image has different labels in 1 case",
    ]


def test_skipped_files_and_why(sound: ReportData) -> None:
    reasons = ["empty"] * 5 + ["a pipe", "a pipe", "HEIC", "too large (9 x 9)"]
    skipped = [{"file": f"{i}.jpg", "reason": reason} for i, reason in enumerate(reasons)]
    found = labels.skipped_files(with_summary(sound, skipped=skipped))
    assert found is not None and found.title == "9 files or folders were skipped"
    assert "5 × empty; 2 × a pipe; 1 × HEIC; and 1 other reason." in found.text
    one = labels.skipped_files(with_summary(sound, skipped=[{"file": "a", "reason": "empty"}]))
    assert one is not None and one.title == "1 file or folder was skipped" and ": 1 × empty." in one.text
    assert labels.skipped_files(sound) is None


def test_conflicting_labels_are_a_problem_and_uninformative_images_a_notice(sound: ReportData) -> None:
    issues = [
        {"issue": f"{CONFLICTING_LABELS} ('a' and 'b'); used without a label", "count": 2, "files": ["1.jpg", "2.jpg"]},
        {"issue": f"{CONFLICTING_LABELS} ('a' and none); used without a label", "count": 1, "files": ["3.jpg"]},
        {"issue": MESSAGES[ImageIssue.BLANK], "count": 1200, "files": ["4.jpg"]},
        {"issue": MESSAGES[ImageIssue.TURNED], "count": 7, "files": ["5.jpg"]},
    ]
    clash, little = collect_findings(with_summary(sound, image_issues=issues))
    assert (clash.level, clash.title) == ("problem", "3 files have conflicting labels in the label file")
    blank = MESSAGES[ImageIssue.BLANK].replace(";", ",")
    assert little.level == "notice" and little.text == f"1,200 × {blank}."
    assert collect_findings(with_summary(sound, image_issues=issues[3:])) == []


def test_problems_come_first_and_a_sound_run_has_none(sound: ReportData) -> None:
    assert collect_findings(sound) == []
    leads = np.where(np.arange(12) < 1, 0.9, 0.0).astype(np.float32)
    poor = replace(
        with_summary(sound, skipped=[{"file": "a", "reason": "empty"}]),
        headline=Headline("test", 30, baselines=[score(-0.1)]),
        label_issues=LabelIssues(np.zeros(12, int), leads),
    )
    found = collect_findings(poor)
    assert [f.level for f in found] == ["problem", "notice", "notice", "notice"]
    assert all(f.text and f.action for f in found)
    good = replace(
        with_curve(with_pool(sound, [30, 30, 40]), [0.9] * 20, 500),
        headline=Headline("test", 500, baselines=[score(0.1, Interval(0.1, 0.05, 0.15))]),
        outliers=by_features(5, 100),
        calibration_error=0.02,
    )
    assert collect_findings(good) == []


def test_every_finding_has_a_name_of_its_own() -> None:
    names = [function.__name__ for function in all_findings()]
    assert len(names) == len(set(names)) >= 15


def test_a_finding_of_docs_is_on_the_page(tmp_path: Path, sound: ReportData, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/extend/finding.md: registering the function is all there is to do."""
    monkeypatch.setattr(findings, "_registered", dict(findings._registered))
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    exec(compile(code, PAGE.name, "exec", dont_inherit=True), {"__name__": "docs"})
    assert collect_findings(with_summary(sound, labelled=[10, 10, 10])) == []
    data = ReportData.of(make_record(tmp_path, NAMES), None, "no images")
    assert "Only 12 labels for 3 classes" in [found.title for found in collect_findings(data)]
    page = render(data)
    assert "Only 12 labels for 3 classes" in page and "Label more images, of the classes" in page
