"""Predictions of a run as tables in its folder: one row per image of the pool, one per test image.

With the answers about the test images kept, two runs can be compared image by image without asking the models again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from unissl.errors import UserError
from unissl.evaluation.predictions import Predictions
from unissl.run_folder import RunFolder
from unissl.types import OOD, ImageTable
from unissl.utils.atomic import write_atomically
from unissl.utils.parquet_file import intact, open_parquet, read_columns

TEST_PREDICTIONS = "test_predictions.parquet"
Columns = Mapping[str, npt.NDArray[Any]]
NUMBERS = ["row", "class_index", "confidence", "outlier_score"]
WHOLE = {"row", "class_index", "truth_index"}
MIN_VALUES = {"truth_index": OOD}


def write_pool_predictions(
    folder: RunFolder, table: ImageTable, rows: npt.NDArray[np.int64], said: Predictions
) -> None:
    """One row per unlabelled image: where it is, its class, how sure."""
    _write(folder.predictions, {**_origin(table, rows), **_prediction_columns(said, table.class_names)})


def write_test_predictions(folder: RunFolder, table: ImageTable, said: Predictions) -> None:
    """One row per test image: the same, with what it really is (-2 and no name: none of the classes)."""
    truth = [table.class_names[label] if label >= 0 else None for label in table.labels]
    columns = {**_origin(table, np.arange(len(table))), "truth": pa.array(truth, pa.string())}
    _write(
        folder.path / TEST_PREDICTIONS,
        {**columns, "truth_index": table.labels, **_prediction_columns(said, table.class_names)},
    )


def _origin(table: ImageTable, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
    files = {} if table.files is None else {"file": [table.files[row] for row in rows]}
    return {**files, "row": rows}


def _prediction_columns(said: Predictions, class_names: tuple[str, ...]) -> dict[str, Any]:
    return {
        "class": np.array(class_names, dtype=object)[said.classes],
        "class_index": said.classes,
        "confidence": said.confidence,
        "margin": said.margin,
        "outlier_score": said.outlier,
    }


def _write(path: Path, columns: Mapping[str, Any]) -> None:
    table = pa.table(dict(columns))
    write_atomically(path, lambda draft: pq.write_table(table, draft))


def read_pool_predictions(folder: RunFolder, num_classes: int) -> Columns | None:
    """The numbers of each row, where the run had a pool."""
    return _read(folder.predictions, NUMBERS, num_classes)


def read_test_predictions(folder: RunFolder, num_classes: int) -> Columns | None:
    """The same with ``truth_index``, where there were test images and the run kept the answers."""
    return _read(folder.path / TEST_PREDICTIONS, [*NUMBERS, "truth_index"], num_classes)


def read_files(path: Path) -> list[str] | None:
    """The file of each row, where the images had files."""
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
    fitting = {
        name: pa.types.is_integer(kind) if name in WHOLE else pa.types.is_floating(kind) for name, kind in types.items()
    }
    if len(fitting) < len(names) or not all(fitting.values()):
        raise UserError(f"{path} lacks columns that a run writes; restore it or train again.")
    table = read_columns(path, file, names)
    if table.num_rows == 0 or any(table[name].null_count for name in names):
        raise UserError(f"{path} has no rows or empty cells; restore it or train again.")
    columns = {name: table[name].to_numpy() for name in names}
    for name in WHOLE & set(names):
        columns[name] = columns[name].astype(np.int64)
        most = num_classes if name != "row" else np.iinfo(np.int64).max
        if not MIN_VALUES.get(name, 0) <= columns[name].min() <= columns[name].max() < most:
            raise UserError(f"{path} has numbers in {name!r} that a run does not write; restore it or train again.")
    for name in set(names) - WHOLE:
        if not np.isfinite(columns[name]).all():
            raise UserError(f"{path} has values in {name!r} that are no numbers; restore it or train again.")
    return columns
