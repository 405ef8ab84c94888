"""Numbers of the report against slow references, and each finding: when it is there and when it is not."""

from __future__ import annotations

import numpy as np
import pytest

from unissl.report import findings
from unissl.report.findings import Bin, Interval

NAMES = ["cat", "dog", "owl"]


def test_gain_equals_resampling_the_images_one_by_one() -> None:
    rng = np.random.default_rng(1)
    ours, theirs = rng.random(200) < 0.8, rng.random(200) < 0.65
    slow = []
    for _ in range(4000):
        rows = rng.integers(0, 200, 200)
        slow.append(ours[rows].mean() - theirs[rows].mean())
    found = findings.paired_gain(ours, theirs)
    assert found.value == pytest.approx(ours.mean() - theirs.mean())
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])), abs=0.01)


def test_gain_is_paired() -> None:
    """Two models that are wrong on the same images differ less than two that are wrong on different ones."""
    half = np.arange(100) < 50
    assert findings.paired_gain(half, half) == Interval(0.0, 0.0, 0.0)
    apart = findings.paired_gain(half, ~half)
    assert apart.value == 0 and apart.high == pytest.approx(0.2, abs=0.03)


def test_accuracy_interval_is_wilsons() -> None:
    assert findings.accuracy_interval(8, 10) == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-4)
    assert findings.accuracy_interval(10, 10) == pytest.approx((1.0, 0.7225, 1.0), abs=1e-4)
    assert findings.accuracy_interval(0, 10).low == 0


def test_calibration_error_against_loops() -> None:
    rng = np.random.default_rng(2)
    confidence = rng.random(300).astype(np.float32)
    confidence[:3] = 0.0, 0.1, 1.0
    right = rng.random(300) < confidence**2
    slow = 0.0
    for low in range(10):
        inside = [i for i in range(300) if low < 10 * confidence[i] <= low + 1 or (low == 0 and confidence[i] == 0)]
        if inside:
            gap = np.mean([confidence[i] for i in inside]) - np.mean([right[i] for i in inside])
            slow += len(inside) / 300 * abs(gap)
    bins = findings.reliability(confidence, right)
    assert sum(b.images for b in bins) == 300
    assert findings.calibration_error(bins) == pytest.approx(slow, abs=1e-5)


def test_empty_bins_are_left_out() -> None:
    bins = findings.reliability(np.array([0.95, 0.97], dtype=np.float32), np.array([True, False]))
    assert bins == [Bin(pytest.approx(0.96), 0.5, 2)]


def test_neighbours_are_the_nearest_by_angle() -> None:
    rng = np.random.default_rng(3)
    features, pool = rng.normal(size=(4, 5)).astype(np.float32), rng.normal(size=(30, 5)).astype(np.float32)
    probs = rng.dirichlet(np.ones(3), 30).astype(np.float32)
    votes = findings.neighbour_votes(features, pool, probs)
    for feature, vote in zip(features, votes, strict=True):
        cosines = [float(feature @ p / np.linalg.norm(feature) / np.linalg.norm(p)) for p in pool]
        nearest = sorted(range(30), key=lambda i: -cosines[i])[:10]
        assert vote == pytest.approx(np.mean([probs[i] for i in nearest], axis=0), abs=1e-6)


def test_a_pool_smaller_than_the_neighbourhood_votes_as_a_whole() -> None:
    probs = np.array([[1, 0], [0, 1]], dtype=np.float32)
    votes = findings.neighbour_votes(np.ones((1, 2), np.float32), np.eye(2, dtype=np.float32), probs)
    assert votes.tolist() == [[0.5, 0.5]]


def test_a_wrong_label_is_found_by_its_neighbours_though_the_model_has_learnt_it_by_heart() -> None:
    labels = np.array([0, 1, 2])
    own = np.eye(3, dtype=np.float32)
    votes = np.array([[0.1, 0.9, 0], [0, 1, 0], [0.6, 0, 0.4]], dtype=np.float32)
    rival, lead = findings.doubts(labels, own, votes, [])
    assert rival[0] == 1 and lead == pytest.approx([0.8, -1, 0.2], abs=1e-6)
    _, without = findings.doubts(labels, own, votes, absent=[0])
    assert without[0] == -1, "a class that the pool lacks has no neighbours of its kind"
    _, alone = findings.doubts(labels, own, None, [])
    assert alone.tolist() == [-1, -1, -1]


def test_collapse() -> None:
    found = findings.collapse([3, 97, 0], NAMES)
    assert found is not None and found.level == "problem" and "97 %" in found.text and "“dog”" in found.text
    assert findings.collapse([30, 40, 30], NAMES) is None
    assert findings.collapse([3, 0, 0], NAMES) is None, "too small a pool to tell"


def test_classes_that_the_pool_lacks() -> None:
    assert findings.absent_classes([500, 499, 1]) == [2]
    assert findings.absent_classes([50, 45, 5]) == []
    assert findings.absent_classes([7, 7, 0]) == [], "too small a pool to tell"
    found = findings.missing_from_pool([2], [500, 499, 1], NAMES)
    assert found is not None and "“owl”" in found.title and found.text.startswith("1 of 1,000")
    many = findings.missing_from_pool(list(range(9)), [0] * 9 + [900], [f"c{i}" for i in range(10)])
    assert many is not None and many.title.endswith("“c4” and 4 more") and many.text.startswith("None of 900")


def test_a_collapse_is_not_also_told_as_missing_classes() -> None:
    titles = [f.title for f in findings.health(NAMES, predicted=[1000, 0, 0])]
    assert titles == ["The model has collapsed"]


def test_too_short() -> None:
    rising = list(np.linspace(0.2, 0.8, 20))
    assert findings.too_short(rising) is not None
    assert findings.too_short([*rising, *[0.8] * 20]) is None
    assert findings.too_short(rising[:4]) is None and findings.too_short([]) is None


def test_worth_of_the_pool() -> None:
    worse = findings.worth_of_pool(-0.05, Interval(-0.05, -0.08, -0.02))
    assert worse is not None and worse.level == "problem" and "−5.0 points" in worse.text
    unknown = findings.worth_of_pool(-0.05, None)
    assert unknown is not None and unknown.level == "problem"
    chance = findings.worth_of_pool(0.01, Interval(0.01, -0.02, 0.04))
    assert chance is not None and chance.level == "notice" and "−2.0 and +4.0" in chance.text
    assert findings.worth_of_pool(0.05, Interval(0.05, 0.02, 0.08)) is None
    assert findings.worth_of_pool(0.05, None) is None


def test_miscalibrated_either_way() -> None:
    sure = findings.miscalibrated([Bin(0.9, 0.6, 100)])
    modest = findings.miscalibrated([Bin(0.4, 0.8, 100)])
    assert sure is not None and "sure of itself" in sure.title and "30 points" in sure.text
    assert modest is not None and "modest" in modest.title
    assert findings.miscalibrated([Bin(0.9, 0.85, 100)]) is None and findings.miscalibrated([]) is None


def test_images_of_none_of_the_classes_and_a_model_that_is_unsure_of_all() -> None:
    some, most = np.repeat([0.9, 0.1], [5, 95]), np.repeat([0.9, 0.1], [60, 40])
    images, model = findings.unlike_the_rest(some), findings.unlike_the_rest(most)
    assert images is not None and images.title.startswith("5 unlabelled images")
    assert model is not None and model.title == "The model is unsure about 60 % of the pool"
    assert findings.unlike_the_rest(np.full(100, 0.1)) is None


@pytest.mark.parametrize(("count", "level"), [(1, "notice"), (9, "problem")])
def test_doubtful_labels(count: int, level: str) -> None:
    found = findings.doubtful_labels(count, 40)
    assert found is not None and found.level == level
    assert findings.doubtful_labels(0, 40) is None


def test_copies_that_matter() -> None:
    def group(*copies: tuple[str, int | None]) -> dict[str, object]:
        return {"kind": "near", "copies": [{"part": part, "row": 0, "label": label} for part, label in copies]}

    harmless = [group(("pool", None), ("pool", None)), group(("labelled", 1), ("labelled", 1), ("pool", None))]
    assert findings.health(NAMES, duplicates=harmless) == []
    leak, clash = group(("test", 1), ("pool", None)), group(("labelled", 1), ("labelled", 0))
    titles = [f.title for f in findings.health(NAMES, duplicates=[*harmless, leak, leak, clash])]
    assert titles == ["Test images are learnt from in 2 cases", "The same image has different labels in 1 case"]


def test_problems_come_first_and_a_sound_run_has_none() -> None:
    found = findings.health(NAMES, test_images=30, skipped=1, gain=-0.1, labelled=12, doubtful=1)
    assert [f.level for f in found] == ["problem", "notice", "notice", "notice"]
    assert "1 file could not be read" in [f.title for f in found]
    sound = findings.health(
        NAMES, predicted=[30, 30, 40], outlier=np.zeros(100, np.float32), curve=[0.9] * 20, gain=0.1
    )
    assert sound == []
    assert all(f.text and f.action for f in found)
