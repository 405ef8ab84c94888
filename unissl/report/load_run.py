"""What a run folder says, without a look at any image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unissl.config import ConfigTree, check, read_toml
from unissl.data import DataConfig
from unissl.errors import UserError
from unissl.methods.registry import all_methods
from unissl.plots.curves import Metrics
from unissl.run.predictions_io import Columns, read_pool_predictions, read_test_predictions
from unissl.run.schema import Estimate, Summary, require, require_lines
from unissl.run_folder import RunFolder, read_json

ESTIMATE = "cross_validation.json"
"""What cross-validation said about each label it left out: rows, truth, predicted."""


@dataclass(frozen=True)
class LabelledPredictions:
    """Images whose truth is known and that no loss has seen: their rows and truth, the answers, and how sure."""

    rows: npt.NDArray[np.int64]
    truth: npt.NDArray[np.int64]
    said: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float32] | None = None

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.truth == self.said)

    def comparable(self, other: LabelledPredictions) -> bool:
        """Whether both are about the same images."""
        return np.array_equal(self.rows, other.rows) and np.array_equal(self.truth, other.truth)


@dataclass(frozen=True)
class RunRecord:
    """A finished run, with the labels-only run beside it."""

    folder: RunFolder
    config: ConfigTree
    summary: Mapping[str, Any]
    metrics: Metrics
    pool: Columns | None
    answers: LabelledPredictions | None = None
    """About test images of known classes or, where there are none, about labels left out in turn."""
    reference: RunRecord | None = None

    @property
    def names(self) -> Sequence[str]:
        return list(self.summary["class_names"])

    @property
    def title(self) -> str:
        method = all_methods().get(self.summary["method"])
        return str(self.summary["method"]) if method is None else method.title

    @property
    def has_detector(self) -> bool:
        """Whether the method was made to tell images of none of the classes."""
        method = all_methods().get(self.summary["method"])
        return method is not None and method.family == "open-set"

    @property
    def source(self) -> str:
        """What the images are called: the name of the data set, or of the folder or file they came from."""
        root = self.config.get("data", {}).get("root")
        name = str(self.summary["data"])
        return (Path(root).name or name) if root and name in ("folder", "parquet") else name


def read_record(folder: RunFolder, reference: bool = True) -> RunRecord:
    beside = RunFolder(folder.path / "labels-only")
    config = read_toml(folder.config)
    data = config.get("data", {})
    check(DataConfig, data if isinstance(data, Mapping) else {"data": data}, where="data")
    summary = require(Summary, read_json(folder.summary), folder.summary)
    classes = len(summary["class_names"])
    return RunRecord(
        folder,
        config,
        summary,
        require_lines(folder.read_metrics(), folder.metrics),
        read_pool_predictions(folder, classes),
        read_labelled_predictions(folder, classes),
        read_record(beside, reference=False) if reference and beside.finished else None,
    )


def read_labelled_predictions(folder: RunFolder, num_classes: int) -> LabelledPredictions | None:
    tested = read_test_predictions(folder, num_classes)
    if tested is not None:
        known = tested["truth_index"] >= 0
        names = ("row", "truth_index", "class_index", "confidence")
        return LabelledPredictions(*(tested[name][known] for name in names)) if known.any() else None
    path = folder.path / ESTIMATE
    if not path.exists():
        return None
    said = require(Estimate, read_json(path), path)
    rows, truth, predicted = (np.array(said[name], dtype=np.int64) for name in ("rows", "truth", "predicted"))
    if max(truth.max(), predicted.max()) >= num_classes:
        raise UserError(f"{path} names classes that the run has not; restore it or train again.")
    return LabelledPredictions(rows, truth, predicted)
