"""The simple baselines, against scikit-learn and against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from unissl.baselines import LinearClassifier, NearestNeighbours, fit_simple_baselines
from unissl.baselines.simple import STRENGTHS, choose_strength, label_spreading, stratified_folds
from unissl.types import UNLABELLED

CLASSES = 3


def blobs(per_class: int, spread: float, seed: int = 0) -> tuple[Tensor, np.ndarray]:
    """Points around three centres, and their classes."""
    rng = np.random.default_rng(seed)
    centres = 2 * np.eye(CLASSES, 5)
    labels = np.tile(np.arange(CLASSES), per_class)
    return torch.from_numpy(centres[labels] + spread * rng.normal(size=(len(labels), 5))).float(), labels


def test_logistic_regression_is_that_of_scikit_learn() -> None:
    x, labels = blobs(6, 1.0)
    ours = fit_simple_baselines(x, labels, CLASSES)["logistic-regression"]
    strength = choose_strength(x, labels, CLASSES)
    theirs = LogisticRegression(C=strength, tol=1e-8, max_iter=1000).fit(x.numpy(), labels)
    np.testing.assert_allclose(ours.weight.numpy(), theirs.coef_, atol=1e-2)
    np.testing.assert_allclose(ours.logits(x).softmax(1).numpy(), theirs.predict_proba(x.numpy()), atol=5e-3)


def test_the_strength_has_the_lowest_cross_validated_loss() -> None:
    x, labels = blobs(5, 1.5)
    losses = {}
    for strength in STRENGTHS:
        total = 0.0
        for fold in range(4):  # the n-th label of each class is in fold n modulo 4
            held_out = np.array([list(np.flatnonzero(labels == c)).index(i) % 4 == fold for i, c in enumerate(labels)])
            model = LogisticRegression(C=strength, tol=1e-8, max_iter=1000).fit(x.numpy()[~held_out], labels[~held_out])
            probs = model.predict_proba(x.numpy()[held_out])
            total -= np.log(probs[np.arange(held_out.sum()), labels[held_out]]).sum()
        losses[strength] = total
    assert choose_strength(x, labels, CLASSES) == min(losses, key=losses.__getitem__)


def test_folds_of_groups_keep_copies_from_choosing_the_strength() -> None:
    """Four copies of each of two noisy images per class, one in each stratified fold: weak regularisation looks best,
    unless all copies of an image are left out together."""
    once, classes = blobs(2, 2.0)
    x, labels = once.repeat_interleave(4, 0), classes.repeat(4)
    together = [np.flatnonzero(np.arange(len(labels)) // 4 // CLASSES == image) for image in range(2)]
    assert choose_strength(x, labels, CLASSES) == max(STRENGTHS)
    assert choose_strength(x, labels, CLASSES, together) == min(STRENGTHS)


def test_a_class_with_a_single_label_gets_the_fixed_strength() -> None:
    x, labels = blobs(4, 5.0)
    keep = np.r_[0:3, 4, 5, 7, 8]
    assert (labels[keep] == 0).sum() == 1
    assert choose_strength(x[keep], labels[keep], CLASSES) == STRENGTHS[0]


def test_folds_hold_every_label_once() -> None:
    labels = np.array([0, 0, 0, 1, 1, 2])
    folds = list(stratified_folds(labels, 4))
    assert torch.stack(folds).sum(0).tolist() == [1] * 6
    assert [fold.sum().item() for fold in folds] == [3, 2, 1]


def test_nearest_neighbours_vote() -> None:
    x, labels = blobs(4, 1.0)
    queries, _ = blobs(3, 1.0, seed=1)
    votes = NearestNeighbours(x, labels, CLASSES, 3).logits(queries).numpy()
    for row, query in enumerate(queries):
        cosines = [float(torch.cosine_similarity(query, other, dim=0)) for other in x]
        best = np.argsort(cosines)[::-1][:3]
        counts = np.bincount(labels[best], minlength=CLASSES)
        assert np.flatnonzero(votes[row] >= 0.5).tolist() == np.flatnonzero(counts).tolist()
        assert counts[votes[row].argmax()] == counts.max()


def test_label_spreading_follows_the_shape_of_the_pool() -> None:
    """Two arcs: the label of each is at one end, and only neighbours lead to the other end."""
    angle = np.linspace(0, 1, 60)
    arcs = [np.stack([np.cos(angle), np.sin(angle), np.full(60, c)], 1) for c in (-0.3, 0.3)]
    x = torch.from_numpy(np.concatenate(arcs)).float()
    truth = np.repeat([0, 1], 60)
    labels = np.full(120, UNLABELLED)
    labels[[0, 119]] = [0, 1]  # opposite ends
    spread = label_spreading(x, labels, 2)
    assert (spread.logits(x).argmax(1).numpy() == truth).mean() > 0.95
    plain = fit_simple_baselines(x[[0, 119]], np.array([0, 1]), 2)["logistic-regression"]
    assert (plain.logits(x).argmax(1).numpy() == truth).mean() < 0.9


@pytest.mark.parametrize("pool", [True, False])
def test_all_baselines_of_a_pool(pool: bool) -> None:
    x, truth = blobs(20, 0.4)
    labels = np.where(np.arange(len(truth)) < 6, truth, UNLABELLED) if pool else truth
    baselines = fit_simple_baselines(x, labels, CLASSES)
    names = ["logistic-regression", "nearest-neighbours"] + (["label-spreading"] if pool else [])
    assert list(baselines) == names
    for classifier in baselines.values():
        assert (classifier.logits(x).argmax(1).numpy() == truth).mean() > 0.9
    assert isinstance(baselines["logistic-regression"], LinearClassifier)
