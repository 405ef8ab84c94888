"""Runs with pretrained networks from elsewhere and runs that fine-tune: the whole way, the shipped model, resume."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hub_models import save_convnext, save_vit
from safetensors.torch import load_file, save_file

from unissl.augment.image_views import ImageViews
from unissl.data import Dataset
from unissl.errors import UserError
from unissl.features import normalisation
from unissl.inference.model import load_model
from unissl.nets import INPUT_MEAN, INPUT_STD, backbone_installed, build
from unissl.run.config import RunConfig, build_config, fit_to_data
from unissl.run.inputs import prepare_inputs
from unissl.run.pipeline import resume, run
from unissl.run.setup import build_training
from unissl.run_folder import RunFolder
from unissl.training.checkpoint import list_checkpoints
from unissl.training.trainer import step_at
from unissl.types import ImageTable
from unissl.utils.atomic import read_json
from unissl.utils.cache import cache_folder

LITE0 = "efficientnet-lite0"
needs_weights = pytest.mark.skipif(not backbone_installed(LITE0), reason="needs the extra 'photos'")
CPU = torch.device("cpu")


def photos(channels: int = 3) -> Dataset:
    """Two classes of different brightness: 6 with their label, 14 without, 7 to test on."""
    rng = np.random.default_rng(0)

    def table(count: int, given: int) -> ImageTable:
        truth = np.arange(count) % 2
        images = rng.integers(0, 120, (count, 32, 32, channels)) + 120 * truth[:, None, None, None]
        labels = np.where(np.arange(count) < given, truth, -1)
        return ImageTable(images.astype(np.uint8), labels.astype(np.int64), ("dark", "light"))

    return Dataset("photos", table(20, 6), table(7, 7), (0.5,) * channels, (0.2,) * channels, flip=True)


@pytest.fixture(params=[3], ids=["rgb"])
def dataset(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    made = photos(request.param)
    monkeypatch.setattr("unissl.run.pipeline.load_data", lambda data, split, index=None: made)
    return made


def settings(**net: Any) -> RunConfig:
    return build_config(
        {
            "net": {"bn_momentum": 0.1, **net},
            "augment": {"cached_views": 1, "pad": 2},
            "batch": {"labelled": 4, "unlabelled": 4, "evaluation": 7},
            "train": {"steps": 4, "evaluations": 2, "checkpoint_every": 2},
            "optim": {"ema_decay": 0.5},
            "data": {"name": "folder"},
        }
    )


def check_shipped(folder: Path, dataset: Dataset) -> None:
    """The shipped model predicts from pixels what training predicted for the pool."""
    pool = pq.read_table(folder / "predictions.parquet").to_pydict()
    preds = load_model(RunFolder(folder)).predict_pixels(dataset.train.images[pool["row"]])
    assert preds.classes.tolist() == pool["class_index"]
    np.testing.assert_allclose(preds.confidence, pool["confidence"], atol=1e-4)
    assert np.ptp(preds.confidence) > 1e-3  # else it would say nothing about the images


# frozen -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("save", "dataset"), [(save_vit, 1), (save_convnext, 3)], indirect=["dataset"])
def test_frozen_model_of_transformers(save: Any, dataset: Dataset, tmp_path: Path) -> None:
    """Trained, shipped, and loaded again where its folder is gone."""
    name = f"hf:{save(tmp_path / 'model')}"
    run(settings(name=name, freeze_backbone=True), tmp_path / "run")
    shutil.rmtree(tmp_path / "model")
    check_shipped(tmp_path / "run", dataset)
    manifest = read_json(tmp_path / "run" / "manifest.json")
    assert manifest["net"] == name and manifest["mean"] == pytest.approx([INPUT_MEAN] * manifest["channels"])


def test_other_weights_make_other_features(dataset: Dataset, tmp_path: Path) -> None:
    name = f"hf:{save_vit(tmp_path / 'model')}"
    config = settings(name=name, freeze_backbone=True)
    config = fit_to_data(config, dataset)
    first = prepare_inputs(config, dataset, CPU).train_views
    again = prepare_inputs(config, dataset, CPU).train_views
    entries = len(list(cache_folder().glob("features-*/")))
    save_vit(tmp_path / "model", seed=1)
    other = prepare_inputs(config, dataset, CPU).train_views
    rows = np.arange(len(dataset.train))
    assert torch.equal(first("none", rows), again("none", rows))
    assert not torch.allclose(first("none", rows), other("none", rows), atol=0.1)
    assert (entries, len(list(cache_folder().glob("features-*/")))) == (2, 4)  # training and test images


def test_frozen_network_with_the_weights_of_a_file(dataset: Dataset, tmp_path: Path) -> None:
    save_file(build("wrn-10-1", 2).state_dict(), tmp_path / "w.safetensors")
    run(settings(name=f"wrn-10-1@{tmp_path / 'w.safetensors'}", freeze_backbone=True), tmp_path / "run")
    os.unlink(tmp_path / "w.safetensors")
    check_shipped(tmp_path / "run", dataset)


def test_images_that_the_network_cannot_read_leave_nothing(dataset: Dataset, here: Path) -> None:
    (here / "fussy_net_of_a_user.py").write_text(
        "from torch import nn\n\n\n"
        "def make():\n"
        "    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4))\n"
        "    net.size = 16\n"
        "    return net\n"
    )
    for how in ("freeze_backbone", "pretrained"):
        with pytest.raises(UserError, match="cannot read images of 32 x 32 pixels.*set data.image_size to 16"):
            run(settings(name="fussy_net_of_a_user:make", **{how: True}), here / "run")
    assert not (here / "run").exists()


# fine-tuned ---------------------------------------------------------------------------------------------------------


def test_images_are_normalised_as_the_weights_expect(dataset: Dataset) -> None:
    config = settings(name=LITE0, pretrained=True)
    inputs = prepare_inputs(fit_to_data(config, dataset), dataset, CPU)
    train, test = inputs.train_views, inputs.test_views
    assert isinstance(train, ImageViews) and isinstance(test, ImageViews)
    assert (train.mean, train.std) == (test.mean, test.std) == normalisation(3)


def check_resumption(whole: Path, cut: Path) -> None:
    """A copy, cut back to the first checkpoint, ends with the same bytes."""
    shutil.copytree(whole, cut)
    for name in ("summary.json", "model.safetensors", "manifest.json"):
        os.unlink(cut / name)
    list_checkpoints(cut / "checkpoints")[-1].unlink()
    resume(cut)
    assert (cut / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@needs_weights
@pytest.mark.parametrize("blocks", [None, 2])
def test_fine_tuned_run_its_model_and_its_resumption(blocks: int | None, dataset: Dataset, tmp_path: Path) -> None:
    run(settings(name=LITE0, pretrained=True, unfreeze_last=blocks), tmp_path / "whole")
    check_shipped(tmp_path / "whole", dataset)
    manifest = read_json(tmp_path / "whole" / "manifest.json")
    assert manifest["mean"] == pytest.approx([INPUT_MEAN] * 3) and manifest["std"] == pytest.approx([INPUT_STD] * 3)
    published, shipped = build(LITE0, 2, pretrained=True), build(LITE0, 2)
    shipped.load_state_dict(load_file(tmp_path / "whole" / "model.safetensors"), strict=True)
    for name, stage in published.stages.items():
        now = shipped.stages[name].state_dict()
        moved = [key for key, value in stage.state_dict().items() if not torch.equal(value, now[key])]
        assert bool(moved) == (blocks is None or name in ("stage7", "map")), name
    check_resumption(tmp_path / "whole", tmp_path / "cut")


def test_fine_tuned_model_of_transformers(dataset: Dataset, tmp_path: Path) -> None:
    name = f"hf:{save_vit(tmp_path / 'model')}"
    run(settings(name=name, pretrained=True), tmp_path / "whole")
    check_resumption(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "model")
    check_shipped(tmp_path / "whole", dataset)


@needs_weights
def test_parameters_that_stay_are_declared_as_never_trained(dataset: Dataset) -> None:
    config = fit_to_data(settings(name=LITE0, pretrained=True, unfreeze_last=1), dataset)
    state, batches = build_training(prepare_inputs(config, dataset, CPU))
    torch.autograd.backward(state.learner.losses(batches.at(0), step_at(0, 4, 2)).total)
    without = {name for name, p in state.learner.named_parameters() if p.grad is None}
    assert without == state.learner.untrained_parameters() and len(without) > 100
