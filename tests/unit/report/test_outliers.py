"""Outliers against slow loops, and on clouds of points where the outliers are known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from unissl.report import outliers

Floats = npt.NDArray[np.float32]


def cloud(rng: np.random.Generator, centre: Floats, count: int) -> Floats:
    return (centre + 0.4 * rng.normal(size=(count, len(centre)))).astype(np.float32)


def clouds(num_outliers: int, classes: int = 20, labels: int = 5) -> tuple[Floats, npt.NDArray[np.int64], Floats]:
    """Classes with a few labels each, and 600 images of them in the pool before some of another kind."""
    rng = np.random.default_rng(0)
    centres = np.eye(classes + 1, 2 * classes, dtype=np.float32) * 2
    labelled = np.concatenate([cloud(rng, centres[c], labels) for c in range(classes)])
    ours = [cloud(rng, centres[c], 600 // classes) for c in range(classes)]
    pool = np.concatenate([*ours, cloud(rng, centres[classes], num_outliers)])
    return labelled, np.repeat(np.arange(classes), labels), pool


def test_against_loops() -> None:
    labelled, labels, pool = clouds(num_outliers=30, classes=5)
    found = outliers.outliers_by_features(labelled, labels, [pool[:200], pool[200:]], 5)
    assert found is not None

    def cosine(one: Floats, other: Floats) -> float:
        return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))

    directions = [row / np.linalg.norm(row) for row in labelled]
    usual = []
    for i, row in enumerate(labelled):
        others = [[d for j, d in enumerate(directions) if labels[j] == c and j != i] for c in range(5)]
        usual.append(max(cosine(row, np.mean(part, axis=0)) for part in others))
    threshold = np.quantile(usual, 0.1)
    means = [np.mean([d for d, label in zip(directions, labels, strict=True) if label == c], axis=0) for c in range(5)]
    for row in range(0, len(pool), 7):
        similarities = [cosine(pool[row], mean) for mean in means]
        assert found.score[row] == pytest.approx(1 - max(similarities), abs=1e-5)
        assert found.nearest[row] == int(np.argmax(similarities))
        assert found.flagged[row] == (max(similarities) < threshold)


def test_images_of_another_kind_are_found_and_exceed_chance() -> None:
    labelled, labels, pool = clouds(num_outliers=150)
    found = outliers.outliers_by_features(labelled, labels, [pool], 20)
    assert found is not None and found.by_features
    assert found.flagged[600:].mean() > 0.9 and found.flagged[:600].mean() < 0.1
    assert found.exceed_chance


def test_a_pool_without_outliers_does_not_exceed_chance() -> None:
    labelled, labels, pool = clouds(num_outliers=0)
    found = outliers.outliers_by_features(labelled, labels, [pool], 20)
    assert found is not None and found.count > 0 and not found.exceed_chance


@pytest.mark.parametrize(("labels", "most"), [(40, 0.22), (400, 0.13)])
def test_few_labels_set_a_threshold_that_chance_moves(labels: int, most: float) -> None:
    """Of pools of one kind with the labelled images one in twenty has more beyond the threshold than is allowed for."""
    allowed = outliers.expected_fraction(labels)
    draws = np.random.default_rng(0).random((4000, labels))
    beyond = np.quantile(draws, outliers.TAIL, axis=1)  # of numbers in 0..1 as many are below it
    assert np.mean(beyond > allowed) == pytest.approx(0.05, abs=0.012)
    assert outliers.TAIL < allowed < most


def test_too_few_labels_to_say_what_is_far() -> None:
    labelled, labels, pool = clouds(num_outliers=10)
    assert outliers.outliers_by_features(labelled[::5], labels[::5], [pool], 20) is None, "one label per class"
    assert outliers.outliers_by_features(labelled[:15], labels[:15], [pool], 20) is None


def test_images_alone_in_their_class_do_not_set_the_threshold() -> None:
    labelled, labels, _ = clouds(num_outliers=0)
    keep = np.array([*range(95), 99])
    sums = np.zeros((20, labelled.shape[1]), dtype=np.float32)
    np.add.at(sums, labels[keep], labelled[keep])
    assert len(outliers.usual_similarity(labelled[keep], labels[keep], sums)) == 95


def test_by_score_is_a_matter_of_one_half() -> None:
    found = outliers.outliers_by_score(np.array([0.4, 0.5, 0.6, 0.9], dtype=np.float32), np.array([0, 1, 1, 0]))
    assert found.flagged.tolist() == [False, False, True, True] and found.count == 2 and found.exceed_chance
