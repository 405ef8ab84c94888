"""The readout: a classifier of the consensus, and when it replaces the head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from unissl.evaluation.readout import Evidence, choose_readout
from unissl.ops.linear import LinearClassifier, rank_in_class

CLASSES, WIDTH = 3, 8
CENTRES = 4 * torch.eye(CLASSES, WIDTH)


def clusters(per_class: int, spread: float = 1.0, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    noise = spread * torch.randn(CLASSES * per_class, WIDTH, generator=torch.Generator().manual_seed(seed))
    truth = np.repeat(np.arange(CLASSES), per_class)
    return CENTRES[torch.from_numpy(truth)] + noise, truth


def head_of(labelled: torch.Tensor, labels: np.ndarray) -> LinearClassifier:
    """The mean of the labelled features of each class: a bad direction where one label is all there is."""
    means = torch.stack([labelled[torch.from_numpy(labels == c)].mean(0) for c in range(CLASSES)])
    return LinearClassifier(means, -means.square().sum(1) / 2)


def test_one_label_far_from_the_centre_of_its_class() -> None:
    """The head follows the label, the consensus follows the cluster."""
    pool, truth = clusters(60)
    labels = np.array([1, 0, 2])
    labelled = CENTRES[torch.from_numpy(labels)].clone()
    labelled[:, 3:] += 2.5 * torch.eye(3, WIDTH - 3)
    head = head_of(labelled, labels)
    classifier, evidence = choose_readout(head, labelled, labels, pool)
    assert (classifier.classes(pool) == truth).mean() > (head.classes(pool) == truth).mean()
    assert (classifier.classes(labelled) == labels).all()
    assert evidence.favours_consensus and evidence.left_out_mean is evidence.left_out_consensus is None
    assert evidence.agreement == (classifier.classes(pool) == head.classes(pool)).mean()
    assert "left_out_mean" not in evidence.to_summary()


def test_scale_of_the_features_does_not_matter() -> None:
    """So that the penalty of the regression means the same for every network."""
    pool, _ = clusters(30, 1.5)
    labelled, labels = CENTRES.clone(), np.arange(CLASSES)
    small, _ = choose_readout(head_of(labelled, labels), labelled, labels, pool)
    large, _ = choose_readout(head_of(labelled, labels), 100 * labelled, labels, 100 * pool)
    torch.testing.assert_close(100 * large.weight, small.weight, rtol=1e-3, atol=1e-4)


def test_left_out_labels() -> None:
    """Labels that contradict the clusters: leaving them out in turn shows it."""
    pool, _ = clusters(20)
    labelled, truth = clusters(4, 0.5, seed=1)
    _, evidence = choose_readout(head_of(labelled, truth), labelled, truth, pool)
    assert evidence.left_out_mean == evidence.left_out_consensus == 1
    mixed = np.tile(np.arange(CLASSES), 4)  # each cluster has labels of all classes
    _, evidence = choose_readout(head_of(labelled, mixed), labelled, mixed, pool)
    assert evidence.left_out_consensus is not None and evidence.left_out_consensus < 0.5


def test_images_that_no_label_reaches_do_not_count() -> None:
    pool, truth = clusters(20, 0.3)
    lonely = torch.zeros(20, WIDTH)
    lonely[:, -1] = 5 + torch.arange(20) / 20  # at right angles to every class
    pool[:, -1] = 0
    labelled, labels = CENTRES.clone(), np.arange(CLASSES)
    classifier, _ = choose_readout(head_of(labelled, labels), labelled, labels, torch.cat([pool, lonely]))
    assert torch.isfinite(classifier.weight).all() and (classifier.classes(pool) == truth).all()


FOR = Evidence(0.9, 1.0, 1.0, 0.9, 0.9)


@pytest.mark.parametrize(
    ("changed", "favours"),
    [
        ({}, True),
        ({"left_out_mean": None, "left_out_consensus": None}, True),
        ({"left_out_consensus": 0.8}, False),
        ({"labels_consensus": 0.9}, False),
        ({"labels_head": 0.8, "labels_consensus": 0.9}, True),
        ({"labels_head": 0.25, "labels_consensus": 0.9, "left_out_consensus": 0.8}, True),  # a head that has collapsed
        ({"labels_head": 0.95, "left_out_consensus": 0.8}, False),
    ],
)
def test_what_decides(changed: dict[str, float | None], favours: bool) -> None:
    assert replace(FOR, **changed).favours_consensus == favours


def test_ranks() -> None:
    assert rank_in_class(np.array([2, 0, 2, 2, 0, 1])).tolist() == [0, 0, 1, 2, 1, 0]
