"""Tables of predictions: what is written is what is read, and two runs can be compared image by image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from unissl.evaluation.predictions import Predictions
from unissl.inference.review import ReviewThresholds
from unissl.report.load_run import LabelledPredictions, read_labelled_predictions
from unissl.run import predictions_io
from unissl.run_folder import RunFolder
from unissl.types import OOD, ImageTable
from unissl.utils.atomic import write_json

PROBS = np.array([[0.9, 0.1], [0.3, 0.7], [0.55, 0.45]], dtype=np.float32)
THRESHOLDS = ReviewThresholds()


def table(labels: list[int], files: tuple[str, ...] | None = None) -> ImageTable:
    images = np.zeros((len(labels), 2, 2, 3), np.uint8)
    return ImageTable(images, np.array(labels, dtype=np.int64), ("cat", "dog"), files)


def test_test_images_with_truth_and_files(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    predictions_io.write_test_predictions(
        folder, table([0, 0, OOD], ("a.jpg", "b.jpg", "c.jpg")), Predictions(PROBS), THRESHOLDS
    )
    rows = pq.read_table(tmp_path / "test_predictions.parquet").to_pylist()
    assert [(r["file"], r["row"], r["truth"], r["class"]) for r in rows] == [
        ("a.jpg", 0, "cat", "cat"),
        ("b.jpg", 1, "cat", "dog"),
        ("c.jpg", 2, None, "cat"),
    ]
    assert np.allclose([r["margin"] for r in rows], [0.8, 0.4, 0.1], atol=1e-6)
    assert np.allclose([r["outlier_score"] for r in rows], [0.1, 0.3, 0.45], atol=1e-6)
    read = read_labelled_predictions(folder, 2)
    assert read is not None and read.correct.tolist() == [True, False], "OOD images are left out"
    assert read.confidence is not None and np.allclose(read.confidence, [0.9, 0.7])


def test_pool_without_files(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    predictions_io.write_pool_predictions(folder, table([-1] * 9), np.array([2, 5, 8]), Predictions(PROBS), THRESHOLDS)
    read = predictions_io.read_pool_predictions(folder, 2)
    assert read is not None and read["row"].tolist() == [2, 5, 8] and read["class_index"].tolist() == [0, 1, 0]
    assert "file" not in pq.read_table(folder.predictions).column_names
    assert predictions_io.read_test_predictions(folder, 2) is None and read_labelled_predictions(folder, 2) is None


def test_cross_validation_takes_the_place_of_test_images(tmp_path: Path) -> None:
    write_json(RunFolder(tmp_path).cross_validation, {"rows": [4, 7], "truth": [0, 1], "predicted": [0, 0]})
    read = read_labelled_predictions(RunFolder(tmp_path), 2)
    assert read is not None and read.correct.tolist() == [True, False] and read.confidence is None


def test_only_predictions_for_the_same_images_are_compared() -> None:
    ours = LabelledPredictions(np.array([1, 2]), np.array([0, 1]), np.array([0, 0]))
    assert ours.comparable(LabelledPredictions(np.array([1, 2]), np.array([0, 1]), np.array([1, 1])))
    assert not ours.comparable(LabelledPredictions(np.array([1, 3]), np.array([0, 1]), np.array([1, 1])))
    assert not ours.comparable(LabelledPredictions(np.array([1, 2]), np.array([1, 1]), np.array([1, 1])))
