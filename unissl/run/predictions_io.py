"""Predictions of a run as tables in its folder: one row per image of the pool, one per test image.

With the predictions for test images stored, two runs can be compared image by image without running the models again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from unissl.errors import UserError
from unissl.evaluation.predictions import Predictions
from unissl.inference.prediction_table import SCHEMA, prediction_table
from unissl.inference.review import ReviewThresholds
from unissl.run_folder import RunFolder
from unissl.types import OOD, ImageTable
from unissl.utils.parquet_file import intact, open_parquet, read_columns

Columns = Mapping[str, npt.NDArray[Any]]
READ_COLUMNS = ["row", "class_index", "confidence", "outlier_score"]
"""Columns that are read back."""
MIN_VALUES = {"truth_index": OOD}
MAX_CONFIDENCE = 1 + 1e-5
"""A sum of probabilities in single precision may exceed one by a few last bits."""


def write_pool_predictions(
    folder: RunFolder,
    table: ImageTable,
    rows: npt.NDArray[np.int64],
    predictions: Predictions,
    thresholds: ReviewThresholds,
) -> None:
    """One row per unlabelled image; ``rows`` (n,) are its rows in ``table``."""
    columns = _image_columns(table, rows)
    prediction_table(predictions, table.class_names, thresholds, columns).save(folder.predictions)


def write_test_predictions(
    folder: RunFolder, table: ImageTable, predictions: Predictions, thresholds: ReviewThresholds
) -> None:
    """One row per test image, with its true class."""
    truth = [table.class_names[label] if label >= 0 else None for label in table.labels]
    columns = {**_image_columns(table, np.arange(len(table))), "truth": truth, "truth_index": table.labels}
    prediction_table(predictions, table.class_names, thresholds, columns).save(folder.test_predictions)


def _image_columns(table: ImageTable, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
    files = {} if table.files is None else {"file": [table.files[row] for row in rows]}
    return {**files, "row": rows}


def read_pool_predictions(folder: RunFolder, num_classes: int) -> Columns | None:
    """Numeric columns of the predictions for the pool, or None if the run had no pool."""
    return _read(folder.predictions, READ_COLUMNS, num_classes)


def read_test_predictions(folder: RunFolder, num_classes: int) -> Columns | None:
    """Numeric columns and ``truth_index`` of the predictions for test images, or None if there were none."""
    return _read(folder.test_predictions, [*READ_COLUMNS, "truth_index"], num_classes)


def read_files(path: Path) -> list[str] | None:
    """The file of each row, if the images had files."""
    file = open_parquet(path)
    if "file" not in file.schema_arrow.names:
        return None
    with intact(path):
        return [str(name) for name in read_columns(path, file, ["file"]).column("file").to_pylist()]


def _read(path: Path, names: list[str], num_classes: int) -> Columns | None:
    if not path.exists():
        return None
    file = open_parquet(path)
    types = {name: file.schema_arrow.field(name).type for name in names if name in file.schema_arrow.names}
    integers = {name for name in names if pa.types.is_integer(SCHEMA.field(name).type)}
    valid = [
        pa.types.is_integer(kind) if name in integers else pa.types.is_floating(kind) for name, kind in types.items()
    ]
    if len(valid) < len(names) or not all(valid):
        raise UserError(f"{path} lacks columns that a run writes; restore it or train again.")
    table = read_columns(path, file, names)
    if table.num_rows == 0 or any(table[name].null_count for name in names):
        raise UserError(f"{path} has no rows or empty cells; restore it or train again.")
    columns = {name: table[name].to_numpy() for name in names}
    for name in names:
        if name not in integers:
            if not np.isfinite(columns[name]).all():
                raise UserError(f"{path} has values in {name!r} that are no numbers; restore it or train again.")
            if name == "confidence" and not 0 <= columns[name].min() <= columns[name].max() <= MAX_CONFIDENCE:
                raise UserError(f"{path} has confidences that are no probabilities; restore it or train again.")
            continue
        columns[name] = columns[name].astype(np.int64)
        limit = num_classes if name != "row" else np.iinfo(np.int64).max
        if not MIN_VALUES.get(name, 0) <= columns[name].min() <= columns[name].max() < limit:
            raise UserError(f"{path} has numbers in {name!r} that a run does not write; restore it or train again.")
    return columns
