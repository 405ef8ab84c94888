"""A run with enough test labels ships a calibrator, and all its predictions are calibrated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli_helpers import succeed

from unissl.config import read_toml
from unissl.evaluation.calibrators import read_calibrator
from unissl.inference.model import load_model
from unissl.inference.review import REASONS
from unissl.run.config import build_config
from unissl.splits.open_set import load_data


def images_of_pool(run: Path) -> np.ndarray:
    config = build_config(read_toml(run / "config.toml"))
    return load_data(config.data, config.split).train.images[json.loads((run / "split.json").read_text())["unlabelled"]]


def test_summary_manifest_and_predictions_agree(finished_run: Path) -> None:
    summary = json.loads((finished_run / "summary.json").read_text())
    found = summary["calibration"]
    manifest = json.loads((finished_run / "manifest.json").read_text())
    assert manifest["calibration"] == {"kind": found["kind"], "temperature": found["temperature"]}
    assert found["kind"] == "temperature" and found["temperature"] != 1
    assert found["labels"] == summary["test_images"] == 500 and found["nll_after"] < found["nll"]
    table = pq.read_table(finished_run / "predictions.parquet").to_pydict()
    model = load_model(finished_run)
    made = model.predict_pixels(images_of_pool(finished_run))
    assert table["class_index"] == made.classes.tolist()
    for name in ("confidence", "margin", "outlier_score"):
        np.testing.assert_allclose(table[name], getattr(made, name), atol=1e-5)
    assert table["review"] == [REASONS[index] for index in model.manifest.review_thresholds.reasons(made)]
    assert summary["pool"]["mean_confidence"] == pytest.approx(float(np.mean(table["confidence"])), abs=1e-5)


def test_a_manifest_without_calibration_is_uncalibrated(finished_run: Path, here: Path) -> None:
    """The classes and the outlier scores are the same."""
    shutil.copytree(finished_run, "old")
    manifest = json.loads(Path("old/manifest.json").read_text())
    calibrator = read_calibrator(manifest.pop("calibration"))
    del manifest["review_thresholds"]
    Path("old/manifest.json").write_text(json.dumps(manifest))
    images = images_of_pool(finished_run)
    new, old = (load_model(run).predict_pixels(images) for run in (finished_run, Path("old")))
    assert (new.classes == old.classes).all()
    np.testing.assert_allclose(old.calibrated(calibrator).probs, new.probs, atol=1e-6)
    np.testing.assert_allclose(old.outlier_score, new.outlier_score, atol=1e-6)
    assert succeed("evaluate", "old").out == succeed("evaluate", finished_run).out
