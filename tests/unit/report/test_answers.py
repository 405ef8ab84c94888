"""Tables of predictions: what is written is what is read, and two runs can be compared image by image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from unissl.evaluation.predictions import Predictions
from unissl.report.load_run import ESTIMATE, LabelledPredictions, read_labelled_predictions
from unissl.run import predictions_io as answers
from unissl.run_folder import RunFolder, write_json
from unissl.types import OOD, ImageTable

PROBS = np.array([[0.9, 0.1], [0.3, 0.7], [0.55, 0.45]], dtype=np.float32)


def table(labels: list[int], files: tuple[str, ...] | None = None) -> ImageTable:
    images = np.zeros((len(labels), 2, 2, 3), np.uint8)
    return ImageTable(images, np.array(labels, dtype=np.int64), ("cat", "dog"), files)


def test_test_images_with_truth_and_files(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    answers.write_test_predictions(folder, table([0, 0, OOD], ("a.jpg", "b.jpg", "c.jpg")), Predictions(PROBS))
    rows = pq.read_table(tmp_path / "test_predictions.parquet").to_pylist()
    assert [(r["file"], r["row"], r["truth"], r["class"]) for r in rows] == [
        ("a.jpg", 0, "cat", "cat"),
        ("b.jpg", 1, "cat", "dog"),
        ("c.jpg", 2, None, "cat"),
    ]
    assert np.allclose([r["margin"] for r in rows], [0.8, 0.4, 0.1], atol=1e-6)
    assert np.allclose([r["outlier_score"] for r in rows], [0.1, 0.3, 0.45], atol=1e-6)
    read = read_labelled_predictions(folder, 2)
    assert read is not None and read.right.tolist() == [True, False], "images of none of the classes are left out"
    assert read.confidence is not None and np.allclose(read.confidence, [0.9, 0.7])


def test_pool_without_files(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    answers.write_pool_predictions(folder, table([-1] * 9), np.array([2, 5, 8]), Predictions(PROBS))
    read = answers.read_pool_predictions(folder, 2)
    assert read is not None and read["row"].tolist() == [2, 5, 8] and read["class_index"].tolist() == [0, 1, 0]
    assert "file" not in pq.read_table(folder.predictions).column_names
    assert answers.read_test_predictions(folder, 2) is None and read_labelled_predictions(folder, 2) is None


def test_labels_left_out_stand_in_for_test_images(tmp_path: Path) -> None:
    write_json(tmp_path / ESTIMATE, {"rows": [4, 7], "truth": [0, 1], "predicted": [0, 0]})
    read = read_labelled_predictions(RunFolder(tmp_path), 2)
    assert read is not None and read.right.tolist() == [True, False] and read.confidence is None


def test_only_answers_about_the_same_images_are_compared() -> None:
    ours = LabelledPredictions(np.array([1, 2]), np.array([0, 1]), np.array([0, 0]))
    assert ours.comparable(LabelledPredictions(np.array([1, 2]), np.array([0, 1]), np.array([1, 1])))
    assert not ours.comparable(LabelledPredictions(np.array([1, 3]), np.array([0, 1]), np.array([1, 1])))
    assert not ours.comparable(LabelledPredictions(np.array([1, 2]), np.array([1, 1]), np.array([1, 1])))
