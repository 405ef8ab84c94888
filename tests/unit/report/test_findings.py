"""Each finding: when it is there and when it is not."""

from __future__ import annotations

import numpy as np
import pytest

from unissl.data.folder.labels import CONTRADICTED
from unissl.data.images.issues import MESSAGES, ImageIssue
from unissl.evaluation.calibration import Bin
from unissl.report.findings import collect_findings
from unissl.report.findings import labels as findings_labels
from unissl.report.findings import pool as findings_pool
from unissl.report.findings import training as findings_training
from unissl.report.headline import Headline
from unissl.report.intervals import Interval
from unissl.report.outliers import Outliers, by_score

NAMES = ["cat", "dog", "owl"]


def strange(flagged: int, total: int, expected: float = 0.1) -> Outliers:
    return Outliers(np.zeros(total), np.zeros(total, int), np.arange(total) < flagged, expected, by_vectors=True)


def test_collapse() -> None:
    found = findings_pool.collapse([3, 97, 0], NAMES)
    assert found is not None and found.level == "problem" and "97 %" in found.text and "“dog”" in found.text
    assert findings_pool.collapse([1, 97, 2], NAMES) is not None, "also where every class still occurs"
    assert findings_pool.collapse([30, 40, 30], NAMES) is None
    assert findings_pool.collapse([8, 90, 2], NAMES) is None, "a pool may be one-sided"
    assert findings_pool.collapse([3, 0, 0], NAMES) is None, "too small a pool to tell"


def test_classes_that_the_pool_lacks() -> None:
    assert findings_pool.absent_classes([500, 499, 1]) == [2]
    assert findings_pool.absent_classes([50, 45, 5]) == []
    assert findings_pool.absent_classes([7, 7, 0]) == [], "too small a pool to tell"
    found = findings_pool.missing_from_pool([2], [500, 499, 1], NAMES)
    assert found is not None and "“owl”" in found.title and found.text.startswith("1 of 1,000")
    many = findings_pool.missing_from_pool(list(range(9)), [0] * 9 + [900], [f"c{i}" for i in range(10)])
    assert many is not None and many.title.endswith("“c4” and 4 more") and many.text.startswith("None of 900")


def test_a_collapse_is_not_also_told_as_missing_classes() -> None:
    assert [f.title for f in collect_findings(NAMES, predicted=[1000, 0, 0])] == ["The model has collapsed"]


def test_images_far_from_every_class() -> None:
    found = findings_pool.unlike_the_rest(strange(15, 100))
    assert found is not None and found.title.startswith("15 unlabelled images") and "only 10 % lie so far" in found.text
    assert findings_pool.unlike_the_rest(strange(9, 100)) is None, "no more than of the labelled images"
    assert findings_pool.unlike_the_rest(strange(1, 4)) is None
    most = findings_pool.unlike_the_rest(strange(60, 100))
    assert most is not None and most.title.startswith("60 unlabelled images"), "the vectors do not doubt themselves"


def test_high_outlier_scores_and_a_model_that_is_unsure_of_all() -> None:
    classes = np.zeros(100, int)
    some, most = np.repeat([0.9, 0.1], [5, 95]), np.repeat([0.9, 0.1], [60, 40])
    images = findings_pool.unlike_the_rest(by_score(some, classes))
    model = findings_pool.unlike_the_rest(by_score(most, classes))
    assert images is not None and images.title.startswith("5 unlabelled images")
    assert model is not None and model.title == "The model is unsure about 60 % of the pool"
    assert findings_pool.unlike_the_rest(by_score(np.full(100, 0.1), classes)) is None


def test_worth_of_the_pool() -> None:
    worse = findings_pool.worth_of_pool(-0.05, Interval(-0.05, -0.08, -0.02))
    assert worse is not None and worse.level == "problem" and "−5.0 points" in worse.text
    unknown = findings_pool.worth_of_pool(-0.05, None)
    assert unknown is not None and unknown.level == "problem"
    chance = findings_pool.worth_of_pool(0.01, Interval(0.01, -0.02, 0.04))
    assert chance is not None and chance.level == "notice" and "−2.0 and +4.0" in chance.text
    assert findings_pool.worth_of_pool(0.05, Interval(0.05, 0.02, 0.08)) is None
    assert findings_pool.worth_of_pool(0.05, None) is None


def test_too_short() -> None:
    rising = list(np.linspace(0.2, 0.8, 20))
    assert findings_training.too_short(rising, 1000) is not None
    assert findings_training.too_short([*rising, *[0.8] * 20], 1000) is None
    assert findings_training.too_short(rising[:4], 1000) is None and findings_training.too_short([], 0) is None


def test_a_rise_that_few_test_images_explain_is_none() -> None:
    curve = [0.5] * 4 + [0.6]
    assert findings_training.too_short(curve, 16) is None
    assert findings_training.too_short(curve, 400) is not None


def test_miscalibrated_either_way() -> None:
    sure = findings_training.miscalibrated(0.3, [Bin(0.9, 0.6, 100)])
    modest = findings_training.miscalibrated(0.4, [Bin(0.4, 0.8, 100)])
    assert sure is not None and "sure of itself" in sure.title and "30 points" in sure.text
    assert modest is not None and "modest" in modest.title
    assert findings_training.miscalibrated(0.05, [Bin(0.9, 0.6, 100)]) is None
    assert findings_training.miscalibrated(None, []) is None


def test_few_images_to_judge_by() -> None:
    tested, guessed = findings_training.few_images(30, False), findings_training.few_images(30, True)
    assert tested is not None and tested.title == "Only 30 test images"
    assert guessed is not None and guessed.title == "Only 30 labels behind the estimate"
    assert findings_training.few_images(100, False) is None and findings_training.few_images(0, False) is None


@pytest.mark.parametrize(("count", "level"), [(1, "notice"), (9, "problem")])
def test_doubtful_labels(count: int, level: str) -> None:
    found = findings_labels.doubtful_labels(count, 40)
    assert found is not None and found.level == level
    assert findings_labels.doubtful_labels(0, 40) is None


def test_classes_with_a_single_label() -> None:
    found = findings_labels.single_labels([1, 4, 1], NAMES)
    assert found is not None and found.title == "2 classes have a single label" and "“cat” and “owl”" in found.text
    one = findings_labels.single_labels([4, 1, 4], NAMES)
    assert one is not None and one.title == "1 class has a single label"
    assert findings_labels.single_labels([2, 2, 2], NAMES) is None


def test_copies_that_matter_and_others() -> None:
    def group(*copies: tuple[str, int | None]) -> dict[str, object]:
        return {"kind": "near", "copies": [{"part": part, "row": 0, "label": label} for part, label in copies]}

    harmless = [group(("pool", None), ("pool", None)), group(("labelled", 1), ("labelled", 1), ("pool", None))]
    assert [(f.level, f.title) for f in collect_findings(NAMES, duplicates=harmless)] == [
        ("notice", "2 images are there more than once")
    ]
    leak, clash = group(("test", 1), ("pool", None)), group(("labelled", 1), ("labelled", 0))
    assert [f.title for f in collect_findings(NAMES, duplicates=[leak, leak, clash])] == [
        "Test images are learnt from in 2 cases",
        "The same image has different labels in 1 case",
    ]


def test_files_that_were_left_out_and_why() -> None:
    reasons = ["empty"] * 5 + ["a pipe", "a pipe", "HEIC", "too large (9 x 9)"]
    found = findings_labels.left_out([{"file": f"{i}.jpg", "reason": reason} for i, reason in enumerate(reasons)])
    assert found is not None and found.title == "9 files or folders were left out"
    assert "5 × empty; 2 × a pipe; 1 × HEIC; and 1 other reason." in found.text
    one = findings_labels.left_out([{"file": "a", "reason": "empty"}])
    assert one is not None and one.title == "1 file or folder was left out" and "without it: 1 × empty." in one.text
    assert findings_labels.left_out([]) is None


def test_several_labels_for_one_file_are_a_problem_and_images_that_show_little_a_notice() -> None:
    remarks = [
        {"remark": f"{CONTRADICTED} ('a' and 'b'); used without a label", "count": 2, "files": ["1.jpg", "2.jpg"]},
        {"remark": f"{CONTRADICTED} ('a' and none); used without a label", "count": 1, "files": ["3.jpg"]},
        {"remark": MESSAGES[ImageIssue.BLANK], "count": 1200, "files": ["4.jpg"]},
        {"remark": MESSAGES[ImageIssue.TURNED], "count": 7, "files": ["5.jpg"]},
    ]
    clash, little = collect_findings(NAMES, remarks=remarks)
    assert (clash.level, clash.title) == ("problem", "3 files have several labels in the label file")
    assert little.level == "notice" and little.text == "1,200 × one colour all over, shows nothing."
    assert collect_findings(NAMES, remarks=remarks[3:]) == []


def test_problems_come_first_and_a_sound_run_has_none() -> None:
    found = collect_findings(
        NAMES,
        head=Headline("test", 30, gain=-0.1),
        skipped=[{"file": "a", "reason": "empty"}],
        checked=12,
        doubtful=1,
        labelled=[4, 4, 4],
    )
    assert [f.level for f in found] == ["problem", "notice", "notice", "notice"]
    assert all(f.text and f.action for f in found)
    sound = collect_findings(
        NAMES,
        head=Headline("test", 500, gain=0.1, gain_interval=Interval(0.1, 0.05, 0.15)),
        predicted=[30, 30, 40],
        outsiders=strange(5, 100),
        labelled=[4, 4, 4],
        curve=[0.9] * 20,
        calibration_error=0.02,
    )
    assert sound == []
