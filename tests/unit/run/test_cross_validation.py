"""Cross-validation over the labels: who is left out when, that refits do not see it, and that nothing is done twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unissl.augment import AugmentConfig
from unissl.augment.feature_views import FeatureViews
from unissl.data import Dataset
from unissl.errors import UserError
from unissl.evaluation.intervals import wilson_interval
from unissl.run.config import RunConfig, build_config
from unissl.run.cross_validation import (
    FACTOR_SPREAD,
    FINE_TUNED_ERRORS,
    FOLD_VARIANCE,
    LABEL_EXPONENT,
    cross_validate,
    estimate_shipped,
    fold_interval,
)
from unissl.run.folds import make_folds, without_labels
from unissl.run.inputs import RunInputs
from unissl.run_folder import RunFolder
from unissl.training.trainer import Trainer
from unissl.types import ImageTable, Split
from unissl.utils.atomic import read_json, write_json

CPU = torch.device("cpu")


def test_every_label_is_left_out_once_and_no_class_is_ever_without() -> None:
    labels = np.repeat(np.arange(5), [4, 2, 7, 3, 4])
    folds = make_folds(labels, 4, seed=3)
    assert len(folds) == 4
    assert sorted(np.concatenate(folds)) == list(range(len(labels)))
    for held in folds:
        kept = np.delete(labels, held)
        assert set(kept) == set(range(5))
    sizes = [len(held) for held in folds]
    assert max(sizes) - min(sizes) <= 1  # dealing goes on where the last class ended, so folds stay even


def test_the_estimate_for_the_shipped_classifier_is_moved_and_widened() -> None:
    folds = wilson_interval(32 / FOLD_VARIANCE, 40 / FOLD_VARIANCE)
    plain, tuned = (estimate_shipped(0.8, 40, 4, fine_tuned) for fine_tuned in (False, True))
    assert plain["accuracy"] == pytest.approx(1 - 0.2 * 0.75**LABEL_EXPONENT)
    assert tuned["accuracy"] == pytest.approx(1 - 0.2 * 0.75**LABEL_EXPONENT * FINE_TUNED_ERRORS)
    for estimate in (plain, tuned):
        spread = FACTOR_SPREAD * (1 - estimate["accuracy"])
        assert (estimate["accuracy"] - estimate["low"]) ** 2 == pytest.approx((0.8 - folds.low) ** 2 + spread**2)
        assert (estimate["high"] - estimate["accuracy"]) ** 2 == pytest.approx((folds.high - 0.8) ** 2 + spread**2)
    perfect = estimate_shipped(1.0, 40, 4, True)
    assert perfect["accuracy"] == perfect["high"] == 1 and perfect["low"] == fold_interval(1.0, 40).low


def test_the_interval_covers_where_refits_share_an_unlucky_draw_of_labels() -> None:
    """Fold accuracies whose variance is that of CIFAR-10 over draws of labels: 9.7 points at 54.9 %, 40 labels."""
    drawn = np.random.default_rng(0).normal(0.549, 0.097, 2000).clip(0, 1)
    intervals = [fold_interval(accuracy, 40) for accuracy in drawn]
    assert np.mean([interval.low <= 0.549 <= interval.high for interval in intervals]) > 0.935
    narrow = [wilson_interval(accuracy * 40, 40) for accuracy in drawn]
    assert np.mean([interval.low <= 0.549 <= interval.high for interval in narrow]) < 0.91


def test_a_class_with_one_label_keeps_it() -> None:
    labels = np.array([0, 1, 1, 2, 2, 2])
    assert sorted(np.concatenate(make_folds(labels, 4, seed=0))) == [1, 2, 3, 4, 5]


def test_nothing_to_leave_out() -> None:
    assert make_folds(np.array([0, 1, 2]), 4, seed=0) == []


def test_folds_follow_the_seed() -> None:
    labels = np.repeat(np.arange(10), 4)
    first, again, other = (make_folds(labels, 4, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def settings(**train: Any) -> RunConfig:
    return build_config(
        {
            "method": {"name": "labels-only"},
            "net": {"bn_momentum": 0.1},
            "batch": {"labelled": 16, "unlabelled": 16},
            "optim": {"ema_decay": 0.5},
            "train": {"steps": 30, "evaluations": 2, **train},
        }
    )


def blobs() -> tuple[Split, FeatureViews]:
    """Three clear clusters, eight labels each, and a pool."""
    generator = np.random.default_rng(0)
    truth = np.tile(np.arange(3), 20)
    vectors = 4 * np.eye(3)[truth] + generator.normal(0, 0.3, (60, 3))
    split = Split(np.arange(24), truth[:24], np.arange(24, 60), 3)
    return split, FeatureViews(vectors[:, None].astype(np.float32), AugmentConfig(feature_dropout=0.1), CPU)


def inputs_of(config: RunConfig, split: Split, views: FeatureViews) -> RunInputs:
    table = ImageTable(np.zeros((60, 1, 1, 1), np.uint8), np.full(60, -1), ("a", "b", "c"))
    dataset = Dataset("blobs", table, None, (0.5,), (0.5,), flip=False)
    return RunInputs(config, dataset, split, CPU, views, None, None)


def validate(tmp_path: Path, config: RunConfig, split: Split, views: FeatureViews) -> dict[str, Any] | None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    done = cross_validate(folder, inputs_of(config, split, views))
    return None if done is None else done.summary


def test_the_estimate_of_an_easy_task(tmp_path: Path) -> None:
    split, views = blobs()
    estimate = validate(tmp_path, settings(), split, views)
    assert estimate is not None
    assert estimate["labels"] == 24 and estimate["folds"] == 4 and estimate["steps"] == 30
    assert estimate["accuracy"] > 0.9
    assert estimate["low"] < estimate["accuracy"] <= estimate["high"] <= 1
    table = read_json(tmp_path / "run" / "cross_validation.json")
    assert table["rows"] == list(range(24)) and table["truth"] == split.labels.tolist()
    assert np.mean(np.equal(table["truth"], table["predicted"])) == estimate["accuracy"]
    assert len(table["confidence"]) == 24 and all(1 / 3 < value <= 1 for value in table["confidence"])


def test_labels_that_mean_nothing_are_not_learnt_by_heart(tmp_path: Path) -> None:
    """The network knows every label it is given; an estimate that leaked would call random ones easy."""
    split, views = blobs()
    shuffled = np.random.default_rng(5).permutation(split.labels)
    random = Split(split.labelled, shuffled, split.unlabelled, 3)
    estimate = validate(tmp_path, settings(steps=60), random, views)
    assert estimate is not None and estimate["accuracy"] < 0.7


def test_held_out_images_are_in_neither_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split, views = blobs()
    seen: list[tuple[set[int], set[int]]] = []
    real = Trainer.run

    def spy(trainer: Trainer) -> None:
        pools = trainer.batches.subsets
        seen.append((set(pools["labelled"].rows.tolist()), set(pools["unlabelled"].rows.tolist())))
        real(trainer)

    monkeypatch.setattr(Trainer, "run", spy)
    validate(tmp_path, settings(steps=2), split, views)
    folds = make_folds(split.labels, 4, seed=0)
    assert len(seen) == len(folds)
    for (labelled, pool), held in zip(seen, folds, strict=True):
        rows = set(split.labelled[held].tolist())
        assert not rows & (labelled | pool)
        assert labelled | rows == set(split.labelled.tolist()) and pool == set(split.unlabelled.tolist())


def test_refits_that_are_done_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split, views = blobs()
    config, real, starts = settings(), Trainer.run, []

    def stop_in_third(trainer: Trainer) -> None:
        starts.append(trainer.title)
        if len(starts) == 3:
            raise KeyboardInterrupt
        real(trainer)

    monkeypatch.setattr(Trainer, "run", stop_in_third)
    folder = RunFolder(tmp_path / "run")
    folder.create()
    inputs = inputs_of(config, split, views)
    with pytest.raises(KeyboardInterrupt):
        cross_validate(folder, inputs)
    again = cross_validate(folder, inputs)
    assert len(starts) == 5  # two done, the third begun twice, the fourth
    assert not (folder.path / "folds").exists()
    whole = validate(tmp_path / "other", config, split, views)
    assert again is not None and again.summary == whole


@pytest.mark.parametrize("removal", [1, 4, 5])
def test_nothing_of_the_refits_is_left_by_a_kill_before_they_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removal: int
) -> None:
    """The folder of the first refit, of the last one, and of all, when the results are complete."""
    split, views = blobs()
    config, train, remove, starts, removals = settings(steps=2), Trainer.run, shutil.rmtree, [], []

    def count(trainer: Trainer) -> None:
        starts.append(trainer.title)
        train(trainer)

    def stop(path: Path) -> None:
        removals.append(path)
        if len(removals) == removal:
            raise KeyboardInterrupt
        remove(path)

    monkeypatch.setattr(Trainer, "run", count)
    monkeypatch.setattr("shutil.rmtree", stop)
    with pytest.raises(KeyboardInterrupt):
        validate(tmp_path, config, split, views)
    again = validate(tmp_path, config, split, views)
    assert len(starts) == 4  # every refit once
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["cross_validation.json"]
    assert again == validate(tmp_path / "other", config, split, views)


@pytest.mark.parametrize(("key", "values"), [("rows", [1] * 24), ("truth", [0] * 24), ("predicted", [3] * 24)])
def test_results_about_other_labels_are_refused(tmp_path: Path, key: str, values: list[int]) -> None:
    split, views = blobs()
    validate(tmp_path, settings(steps=2), split, views)
    path = tmp_path / "run" / "cross_validation.json"
    write_json(path, read_json(path) | {key: values})
    with pytest.raises(UserError, match="not about the labels of this run; delete it"):
        validate(tmp_path, settings(steps=2), split, views)


def test_no_estimate_where_it_is_not_wanted_or_not_possible(tmp_path: Path) -> None:
    split, views = blobs()
    assert validate(tmp_path / "a", settings(cv_folds=0), split, views) is None
    single = Split(np.arange(3), np.arange(3), split.unlabelled, 3)
    assert inputs_of(settings(), single, views).folds == []
    assert validate(tmp_path / "b", settings(), single, views) is None


def test_a_split_without_some_labels() -> None:
    split, _ = blobs()
    less = without_labels(split, np.array([0, 5]))
    assert less.labelled.tolist() == [row for row in range(24) if row not in (0, 5)]
    assert less.labels.tolist() == [split.labels[row] for row in less.labelled]
    assert np.array_equal(less.unlabelled, split.unlabelled)
