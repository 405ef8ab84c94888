"""Unknowns from classes of the data set and from a second one, and how the outlier score is judged."""

from __future__ import annotations

import numpy as np
import pytest

from unissl.data import DataConfig, from_arrays
from unissl.errors import UserError
from unissl.evaluation.diagnostics import pseudo_label_quality
from unissl.evaluation.metrics import evaluate_predictions, outlier_auroc
from unissl.evaluation.predictions import Predictions
from unissl.splits import SplitConfig
from unissl.splits.open_set import add_ood_images, load_data, mark_ood_classes
from unissl.types import OOD


def test_unknown_classes_leave_the_classes_and_keep_their_images() -> None:
    closed = load_data(DataConfig(name="digits"), SplitConfig())
    opened = load_data(DataConfig(name="digits"), SplitConfig(ood_classes=("2", "9")))
    assert opened.train.class_names == ("0", "1", "3", "4", "5", "6", "7", "8")
    for before, after in ((closed.train, opened.train), (closed.test, opened.test)):
        assert before is not None and after is not None
        assert np.array_equal(before.images, after.images)
        for old, new in zip(before.labels, after.labels, strict=True):
            expected = OOD if old in (2, 9) else after.class_names.index(str(old))
            assert new == expected


def test_names_of_unknown_classes_are_checked() -> None:
    digits = load_data(DataConfig(name="digits"), SplitConfig())
    with pytest.raises(UserError, match="names 'nine', which is no class of digits"):
        mark_ood_classes(digits, ("nine",))
    with pytest.raises(UserError, match="at least two classes"):
        mark_ood_classes(digits, tuple("012345678"))


@pytest.mark.parametrize(("channels", "other"), [(1, 3), (3, 1), (3, 3)])
def test_a_second_data_set_is_brought_to_shape(channels: int, other: int) -> None:
    rng = np.random.RandomState(0)

    def made(count: int, side: int, channels: int) -> np.ndarray:
        return rng.randint(0, 256, (count, side, side, channels)).astype(np.uint8)

    labels, test = np.array([0, 1, 0, 1]), np.array([0, 1])
    ours = from_arrays(made(4, 10, channels), labels, test=(made(2, 10, channels), test))
    theirs = from_arrays(made(3, 16, other), [0, 1, 1], test=(made(2, 16, other), test))
    both = add_ood_images(ours, theirs)
    assert both.train.labels.tolist() == [0, 1, 0, 1, OOD, OOD, OOD]
    assert both.train.images.shape == (7, 10, 10, channels)
    assert both.test is not None and both.test.labels.tolist() == [0, 1, OOD, OOD]
    assert np.array_equal(both.train.images[:4], ours.train.images)
    means = both.train.images[4:].mean((1, 2)).mean(1), theirs.train.images.mean((1, 2))
    weights = [0.299, 0.587, 0.114] if (channels, other) == (1, 3) else [1 / other] * other
    assert means[0] == pytest.approx(means[1] @ np.array(weights), abs=6)


def test_of_a_second_data_set_the_first_classes_can_be_taken() -> None:
    images = np.arange(6, dtype=np.uint8).repeat(64).reshape(6, 8, 8, 1)
    ours = from_arrays(images[:2], [0, 1], test=(images[:2], np.array([0, 1])))
    theirs = from_arrays(images, [0, 1, 2, 2, 1, 0], test=(images[:3], np.array([0, 1, 2])))
    both = add_ood_images(ours, theirs, classes=2)
    assert both.train.images[2:, 0, 0, 0].tolist() == [0, 1, 4, 5]
    assert both.test is not None and both.test.images[2:, 0, 0, 0].tolist() == [0, 1]
    with pytest.raises(ValueError, match="give ood_data too"):
        SplitConfig(ood_data_classes=2)


def test_auroc_counts_pairs() -> None:
    truth = np.array([0, 1, OOD, OOD, 2])
    outlier = np.array([0.1, 0.5, 0.5, 0.9, 0.6], dtype=np.float32)
    pairs = [
        1.0 if outlier[i] > outlier[j] else 0.5 if outlier[i] == outlier[j] else 0.0 for i in (2, 3) for j in (0, 1, 4)
    ]
    assert outlier_auroc(truth, outlier) == pytest.approx(np.mean(pairs))


def test_accuracy_is_that_on_known_classes() -> None:
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], dtype=np.float32)
    truth, plain = np.array([0, 0, OOD]), Predictions(probs)
    found = evaluate_predictions(truth, plain.classes, plain.outlier_score, 2)
    assert found["accuracy"] == 0.5 and found["ood_test_images"] == 1
    assert found["auroc"] == 1.0  # without a detector: one minus the largest probability
    scores = np.array([3.0, 2.0, 1.0], dtype=np.float32)
    assert evaluate_predictions(truth, plain.classes, scores, 2)["auroc"] == 0.0
    assert "auroc" not in evaluate_predictions(np.array([0, 0, 1]), plain.classes, plain.outlier_score, 2)


def test_a_class_for_an_unknown_is_wrong() -> None:
    found = pseudo_label_quality(np.array([0, OOD, 1]), np.array([0, 0, 1]), 2)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["false_positives"] == [1, 0] and found["ood"] == 1 and found["truth"] == [1, 1]
