"""A run in which a simple baseline was better: its classifier is in the model file, the predictions and the export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_inputs import carried_out, needs_weights, photos, settings, without_package

from unissl.baselines import LinearClassifier
from unissl.inference.model import load_model
from unissl.nets.heads import LinearHead
from unissl.report.load_run import read_record
from unissl.run.pipeline import resume
from unissl.run.shipping import Baselines, Shipped
from unissl.run_folder import RunFolder


@pytest.fixture(autouse=True)
def shared_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path_factory.getbasetemp() / "features-of-shipped-baselines"))


def ship_regression(method: str, predicted: Any, truth: Any, baselines: Baselines) -> Shipped:
    classifier = baselines.classifiers["logistic-regression"]
    assert isinstance(classifier, LinearClassifier)
    return Shipped("logistic-regression", "it was better", classifier)


@needs_weights
def test_the_shipped_baseline_predicts_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unissl.run.pipeline.choose_classifier", ship_regression)
    config = settings(output={"baseline": True}, distil={"epochs": 1.0, "batch": 8})
    summary = carried_out(config, tmp_path / "run")
    folder, dataset = RunFolder(tmp_path / "run"), photos()
    assert summary["shipped"] == {"classifier": "logistic-regression", "reason": "it was better"}
    assert "distilled" not in summary
    regression = summary["baselines"]["logistic-regression"]
    assert regression["gain"] == 0 and regression["accuracy"] == summary["accuracy"]["last"]
    without_package(monkeypatch)
    model = load_model(folder)
    assert model.manifest.linear and any(isinstance(part, LinearHead) for part in model.module.modules())
    assert dataset.test is not None
    classes = model.predict_pixels(dataset.test.images).classes
    assert (classes == dataset.test.labels).mean() == summary["accuracy"]["last"]
    record = read_record(folder)
    assert record.pool is not None
    pool = model.predict_pixels(dataset.train.images[record.pool["row"]])
    np.testing.assert_array_equal(pool.classes, record.pool["class_index"])
    np.testing.assert_allclose(pool.confidence, record.pool["confidence"], atol=2e-3)


@needs_weights
def test_an_interrupted_choice_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unissl.run.pipeline.choose_classifier", ship_regression)
    config = settings(output={"baseline": True})
    carried_out(config, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    weights = folder.model.read_bytes()
    for path in (folder.summary, folder.model):
        path.unlink()
    monkeypatch.setattr("unissl.run.pipeline.load_data", lambda *given: photos())
    resume(folder.path)
    assert folder.model.read_bytes() == weights
