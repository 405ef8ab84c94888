"""The files of a finished run, validated; no image is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unissl.config import read_toml
from unissl.errors import UserError
from unissl.inference.manifest import Manifest, read_manifest
from unissl.methods.base import Method
from unissl.methods.registry import get_method
from unissl.plots.curves import Metrics
from unissl.run.config import RunConfig, build_config
from unissl.run.predictions_io import Columns, read_pool_predictions, read_test_predictions
from unissl.run.schema import CrossValidation, Summary, require, require_lines
from unissl.run_folder import RunFolder
from unissl.types import Bools, Floats, Labels, Rows
from unissl.utils.atomic import read_json


@dataclass(frozen=True)
class LabelledPredictions:
    """Predictions for images with a known class that no loss has seen: row, true class, predicted class (n,)."""

    rows: Rows
    truth: Labels
    predicted: Labels
    confidence: Floats | None = None

    @property
    def correct(self) -> Bools:
        return np.asarray(self.truth == self.predicted)

    def comparable(self, other: LabelledPredictions) -> bool:
        """Whether both are for the same images."""
        return np.array_equal(self.rows, other.rows) and np.array_equal(self.truth, other.truth)


@dataclass(frozen=True)
class RunResults:
    """Results of a run or of its baseline."""

    summary: Mapping[str, Any]
    metrics: Metrics
    predictions: LabelledPredictions | None
    """For the test images of the classes or, without any, for the labels that cross-validation left out."""


@dataclass(frozen=True)
class RunRecord(RunResults):
    """A finished run with its labels-only baseline."""

    folder: RunFolder
    config: RunConfig
    manifest: Manifest
    pool: Columns | None
    """Columns of predictions.parquet."""
    baseline: RunResults | None = None

    @property
    def names(self) -> list[str]:
        return list(self.summary["class_names"])

    @property
    def method(self) -> type[Method]:
        return get_method(self.config.method.name)

    @property
    def source(self) -> str:
        """Name of the data set, or of the folder or file that the images came from."""
        data = self.config.data
        return (Path(data.root).name or data.name) if data.root and data.name in ("folder", "parquet") else data.name


def read_record(folder: RunFolder) -> RunRecord:
    """Read and validate the files of a finished run; a UserError names the first file that is damaged."""
    config, results, baseline = build_config(read_toml(folder.config)), read_results(folder), folder.baseline
    return RunRecord(
        **vars(results),
        folder=folder,
        config=config,
        manifest=read_manifest(folder),
        pool=read_pool_predictions(folder, len(results.summary["class_names"])),
        baseline=read_results(baseline) if baseline.finished else None,
    )


def read_results(folder: RunFolder) -> RunResults:
    summary = require(Summary, read_json(folder.summary), folder.summary)
    metrics = require_lines(folder.read_metrics(), folder.metrics)
    return RunResults(summary, metrics, read_labelled_predictions(folder, len(summary["class_names"])))


def read_labelled_predictions(folder: RunFolder, num_classes: int) -> LabelledPredictions | None:
    """Predictions for the test images of the classes; without test images those of the cross-validation."""
    columns = read_test_predictions(folder, num_classes)
    if columns is not None:
        known = columns["truth_index"] >= 0
        names = ("row", "truth_index", "class_index", "confidence")
        return LabelledPredictions(*(columns[name][known] for name in names)) if known.any() else None
    path = folder.cross_validation
    if not path.exists():
        return None
    table = require(CrossValidation, read_json(path), path)
    rows, truth, predicted = (np.array(table[name], dtype=np.int64) for name in ("rows", "truth", "predicted"))
    if max(truth.max(), predicted.max()) >= num_classes:
        raise UserError(f"{path} has a class index that the run does not have; restore it or train again.")
    confidence = None if table.get("confidence") is None else np.array(table["confidence"], dtype=np.float32)
    return LabelledPredictions(rows, truth, predicted, confidence)
