"""Runs on the features of a frozen backbone: every part of a run, the shipped model, resume, and what is refused."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import OPTIM, make_split

from unissl.augment import AugmentConfig
from unissl.augment.feature_views import FeatureViews
from unissl.augment.image_views import ImageViews
from unissl.batches import BatchConfig, Batches, subsets
from unissl.config import read_toml
from unissl.data import Dataset
from unissl.errors import UserError
from unissl.evaluation.predictions import predict_rows
from unissl.inference.model import load_model
from unissl.methods.base import Needs, attach_method
from unissl.methods.registry import get_method
from unissl.nets import INPUT_MEAN, INPUT_STD, backbone_installed
from unissl.nets.bf16 import cpu_supports_bf16
from unissl.nets.heads import MLPHead
from unissl.nets.small import SmallNet
from unissl.run.budget import MAX_STEPS_ON_FEATURES, plan_budget, steps_from_minutes
from unissl.run.config import RunConfig, build_config, fit_to_data
from unissl.run.inputs import RunInputs, build_network, check_supports_features, prepare_inputs
from unissl.run.pipeline import resume, run, train_and_save, write_config_and_split
from unissl.run.setup import build_training
from unissl.run_folder import RunFolder
from unissl.training.learner import Learner
from unissl.training.optim import build_optimizer
from unissl.training.trainer import step_at
from unissl.types import DataInfo, ImageTable, Prediction

LITE0 = "efficientnet-lite0"
needs_weights = pytest.mark.skipif(not backbone_installed(LITE0), reason="needs the extra 'photos'")
CPU = torch.device("cpu")
FROZEN = {"name": LITE0, "freeze_backbone": True, "bn_momentum": 0.1}


# methods on vectors, without any backbone ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sage", "fixmatch", "labels-only", "cpg", "ssb", "scomatch"])
def test_methods_train_on_vectors(name: str) -> None:
    """Three steps are finite, move every part of the network, depend on the seed alone, and lead to predictions."""
    split = make_split(3)
    total = len(split.labelled) + len(split.unlabelled) + len(split.heldout)
    vectors = np.random.default_rng(0).normal(size=(total, 3, 20)).astype(np.float32)
    views = FeatureViews(vectors, AugmentConfig(cached_views=2), CPU)
    method_class = get_method(name)
    cfg = method_class.Config(name=name).for_data(3)

    def trained() -> Learner:
        torch.manual_seed(0)
        net = MLPHead(20, 3, bn_momentum=0.1)
        attach_method(net, method_class)
        info = DataInfo(3, net.feat_dim, len(split.unlabelled), split.labelled_counts, {}, views.shape)
        learner = Learner(net, method_class(cfg, info))
        optimizer = build_optimizer(learner, OPTIM)
        sizes = BatchConfig(labelled=6, unlabelled=10, evaluation=7)
        batches = Batches(views, subsets(split), method_class.streams(cfg), sizes, 0, CPU)
        start = {key: value.clone() for key, value in net.named_parameters()}
        for step in range(3):
            total_loss = learner.losses(batches.at(step), step_at(step, 3, 1)).total
            assert torch.isfinite(total_loss)
            optimizer.zero_grad()
            torch.autograd.backward(total_loss)
            optimizer.step()
        assert all(not torch.equal(value, start[key]) for key, value in net.named_parameters())
        return learner

    learner, again = trained(), trained()
    assert all(torch.equal(a, b) for a, b in zip(learner.parameters(), again.parameters(), strict=True))
    preds = predict_rows(learner.predict, views, rows=split.unlabelled, batch_size=7)
    assert preds.probs.shape == (24, 3) and np.allclose(preds.probs.sum(1), 1, atol=1e-5)
    shipped = method_class.inference_module(learner.method, learner.net).eval()(views("none", split.unlabelled))
    np.testing.assert_allclose(shipped.logits.detach().softmax(-1).numpy(), preds.probs, atol=1e-5)


# runs on photos -----------------------------------------------------------------------------------------------------


def photos(side: int = 32) -> Dataset:
    """Two classes of different brightness: 8 with their label, 30 without, 9 to test on."""
    rng = np.random.default_rng(0)

    def table(count: int, known: int) -> ImageTable:
        truth = np.arange(count) % 2
        images = rng.integers(0, 120, (count, side, side, 3)) + 120 * truth[:, None, None, None]
        labels = np.where(np.arange(count) < known, truth, -1)
        return ImageTable(images.astype(np.uint8), labels.astype(np.int64), ("dark", "light"))

    return Dataset("photos", table(38, 8), table(9, 9), (0.5,) * 3, (0.2,) * 3, flip=True)


def settings(method: str = "sage", **groups: Any) -> RunConfig:
    tree: dict[str, Any] = {
        "method": {"name": method},
        "net": FROZEN,
        "augment": {"cached_views": 1, "pad": 2},
        "batch": {"labelled": 4, "unlabelled": 6, "evaluation": 5},
        "train": {"steps": 4, "evaluations": 2, "checkpoint_every": 2},
        "optim": {"ema_decay": 0.5},
        "data": {"name": "folder"},
    }
    return fit_to_data(build_config({**tree, **groups}), photos())


def prepared(config: RunConfig) -> RunInputs:
    return prepare_inputs(config, photos(), CPU)


def carried_out(config: RunConfig, out: Path) -> dict[str, Any]:
    """The summary of a run that was started and finished in ``out``."""
    inputs = prepared(config)
    state, batches = build_training(inputs)
    write_config_and_split(RunFolder(out), inputs)
    return train_and_save(RunFolder(out), inputs, state, batches)


@pytest.fixture
def shared_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the tests of this file, so that the vectors are made once."""
    place = tmp_path_factory.getbasetemp() / "vectors-of-material"
    monkeypatch.setenv("UNISSL_CACHE", str(place))
    return place


def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@needs_weights
def test_views_and_network_of_a_frozen_backbone(shared_cache: Path) -> None:
    inputs = prepared(settings())
    train, test = inputs.train_views, inputs.test_views
    assert isinstance(train, FeatureViews) and isinstance(test, FeatureViews)
    assert train.features.shape == (38, 2, 1280) and test.features.shape == (9, 1, 1280)
    assert test.scale is train.scale  # the test images have no say in it
    assert isinstance(build_network(inputs.config, train, 2), MLPHead)


def test_views_and_network_of_images() -> None:
    inputs = prepared(settings(net={"name": "small"}))
    assert isinstance(inputs.train_views, ImageViews) and isinstance(inputs.test_views, ImageViews)
    assert isinstance(build_network(inputs.config, inputs.train_views, 2), SmallNet)


@needs_weights
@pytest.mark.parametrize("method", ["sage", "ssb"])
def test_shipped_model_agrees_with_the_vectors(
    method: str, shared_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The images of the pool and of the test through the file, where the package of the weights is not installed."""
    inputs = prepared(settings(method))
    state, batches = build_training(inputs)
    write_config_and_split(RunFolder(tmp_path / "run"), inputs)
    summary = train_and_save(RunFolder(tmp_path / "run"), inputs, state, batches)
    dataset, tests = inputs.dataset, inputs.test_views
    assert dataset.test is not None and tests is not None

    def answer(x: torch.Tensor) -> Prediction:
        return state.learner.predict(x, state.ema.shadow)

    without_package(monkeypatch)
    model = load_model(RunFolder(tmp_path / "run"))
    assert model.manifest.mean == [INPUT_MEAN] * 3 and model.manifest.std == [INPUT_STD] * 3 and model.size == (32, 32)
    for images, views in ((dataset.test.images, tests), (dataset.train.images, batches.views)):
        shipped, on_vectors = model.predict_pixels(images), predict_rows(answer, views)
        np.testing.assert_allclose(shipped.probs, on_vectors.probs, atol=1e-4)
        np.testing.assert_allclose(shipped.outlier_score, on_vectors.outlier_score, atol=1e-4)
    parameters = sum(parameter.numel() for parameter in model.module.parameters())
    assert summary["parameters"] == parameters > 3_000_000  # the backbone counts


@needs_weights
def test_a_run_that_is_cut_off_ends_with_the_same_bits(
    shared_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once with its vectors in the cache, once with the cache lost."""
    monkeypatch.setattr("unissl.run.pipeline.load_data", lambda data, split, index=None: photos())
    whole = carried_out(settings(), tmp_path / "whole")
    model = (tmp_path / "whole" / "model.safetensors").read_bytes()
    for lost in (False, True):
        cut = tmp_path / f"cut-{lost}"
        shutil.copytree(tmp_path / "whole", cut)
        for name in ("summary.json", "model.safetensors"):
            os.unlink(cut / name)
        newest = sorted((cut / "checkpoints").iterdir())[-1]
        newest.unlink()
        assert len(list((cut / "checkpoints").iterdir())) == 1
        if lost:
            monkeypatch.setenv("UNISSL_CACHE", str(tmp_path / "new cache"))
        again = resume(cut)
        assert (cut / "model.safetensors").read_bytes() == model
        assert again.summary["accuracy"] == whole["accuracy"]


@needs_weights
def test_baseline_and_minutes_use_the_cached_features(
    shared_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(settings())

    def forbidden(*given: object) -> None:
        raise AssertionError("the backbone ran again")

    monkeypatch.setattr("unissl.features.extract.write_rows", forbidden)
    for minutes, most in ((0.001, 50), (1000.0, MAX_STEPS_ON_FEATURES)):
        config = settings("labels-only", train={"minutes": minutes, "evaluations": 1})
        planned = steps_from_minutes(config, *build_training(prepared(config)))
        assert planned.train.steps is not None and 1 <= planned.train.steps <= most
    carried_out(settings("labels-only"), tmp_path / "baseline")


@needs_weights
@pytest.mark.skipif(not cpu_supports_bf16(), reason="needs a CPU that computes in bfloat16")
def test_a_resumed_run_keeps_its_precision_or_says_that_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial of the CPU failed or timed out, and the cache was lost: float32 would change the features."""
    monkeypatch.setattr("unissl.run.pipeline.load_data", lambda data, split, index=None: photos())
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path / "cache"))
    run(settings(distil={"epochs": 1.0, "batch": 8}), tmp_path / "whole")
    model = (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert read_toml(tmp_path / "whole" / "config.toml")["machine"]["bf16"] is True
    os.unlink(tmp_path / "whole" / "summary.json")
    os.unlink(tmp_path / "whole" / "model.safetensors")
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path / "new cache"))
    with monkeypatch.context() as failing:
        failing.setattr("unissl.nets.bf16.survives", lambda trial: False)
        with pytest.raises(UserError, match=r"machine\.bf16 = true.*--set machine\.bf16=false"):
            resume(tmp_path / "whole")
    assert not (tmp_path / "whole" / "model.safetensors").exists()
    resume(tmp_path / "whole")
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == model


@needs_weights
def test_a_run_that_started_in_float32_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the trial of the CPU succeeds later; the environment variable decides for a new run."""
    monkeypatch.setattr("unissl.run.pipeline.load_data", lambda data, split, index=None: photos())
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UNISSL_DISABLE_BF16", "1")
    run(settings(machine={"bf16": True}), tmp_path / "whole")
    model = (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert read_toml(tmp_path / "whole" / "config.toml")["machine"]["bf16"] is False
    os.unlink(tmp_path / "whole" / "summary.json")
    shutil.rmtree(tmp_path / "whole" / "checkpoints")
    monkeypatch.delenv("UNISSL_DISABLE_BF16")
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path / "new cache"))
    resume(tmp_path / "whole")
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == model


# refusals -----------------------------------------------------------------------------------------------------------


def test_only_networks_with_weights_can_be_frozen() -> None:
    with pytest.raises(
        UserError, match=r"^Setting 'net': there are no pretrained weights .*'small'.*efficientnet-lite0"
    ):
        build_config({"net": {"name": "small", "freeze_backbone": True}})


@pytest.mark.parametrize("key, value", [("feature_dropout", 1.0), ("feature_dropout", -0.1), ("cached_views", -1)])
def test_settings_of_vectors_out_of_range(key: str, value: float) -> None:
    with pytest.raises(UserError, match=f"'augment.{key}'"):
        build_config({"augment": {key: value}})


def test_a_method_that_reads_inner_maps_is_refused_before_anything_is_made() -> None:
    with pytest.raises(UserError, match="meta-expert needs inner maps of the network.*net.freeze_backbone=false"):
        prepared(settings("meta-expert"))


def test_a_method_that_asks_about_images_is_refused() -> None:
    class Asking(get_method("fixmatch")):  # type: ignore[misc]
        needs = frozenset({Needs.IMAGES})

    with pytest.raises(UserError, match="fixmatch needs images.*net.freeze_backbone=false"):
        check_supports_features(settings("fixmatch"), Asking)
    check_supports_features(settings("fixmatch"), get_method("fixmatch"))


@needs_weights
def test_minutes_that_are_too_short_are_refused_before_the_start(shared_cache: Path, tmp_path: Path) -> None:
    """One step of the baseline would make any gain over it look large."""
    config = settings(train={"minutes": 0.001, "evaluations": 1})
    inputs = prepared(config)
    state, batches = build_training(inputs)
    with pytest.raises(UserError, match=r"0\.001 minutes are too short for 100 training steps .* give --minutes \d+"):
        plan_budget(inputs, state, batches, time.monotonic(), baseline=True)
    enough = inputs.with_config(settings(train={"minutes": 1000.0, "evaluations": 1}))
    assert plan_budget(enough, state, batches, time.monotonic(), baseline=True).train.steps == MAX_STEPS_ON_FEATURES
