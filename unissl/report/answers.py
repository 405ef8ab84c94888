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

from unissl.evaluate.predict import Predictions
from unissl.record import RunFolder, write_atomically
from unissl.types import ImageTable

TEST_PREDICTIONS = "test_predictions.parquet"
Columns = Mapping[str, npt.NDArray[Any]]
NUMBERS = ["row", "class_index", "confidence", "outlier"]


def write_pool_answers(folder: RunFolder, table: ImageTable, rows: npt.NDArray[np.int64], said: Predictions) -> None:
    """One row per unlabelled image: where it is, its class, how sure."""
    _write(folder.predictions, {**_origin(table, rows), **_answers(said, table.class_names)})


def write_test_answers(folder: RunFolder, table: ImageTable, said: Predictions) -> None:
    """One row per test image: the same, with what it really is (-2 and no name: none of the classes)."""
    truth = [table.class_names[label] if label >= 0 else None for label in table.labels]
    columns = {**_origin(table, np.arange(len(table))), "truth": pa.array(truth, pa.string())}
    _write(
        folder.path / TEST_PREDICTIONS, {**columns, "truth_index": table.labels, **_answers(said, table.class_names)}
    )


def _origin(table: ImageTable, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
    files = {} if table.files is None else {"file": [table.files[row] for row in rows]}
    return {**files, "row": rows}


def _answers(said: Predictions, class_names: tuple[str, ...]) -> dict[str, Any]:
    return {
        "class": np.array(class_names, dtype=object)[said.classes],
        "class_index": said.classes,
        "confidence": said.confidence,
        "margin": said.margin,
        "outlier": said.outlier,
    }


def _write(path: Path, columns: Mapping[str, Any]) -> None:
    table = pa.table(dict(columns))
    write_atomically(path, lambda draft: pq.write_table(table, draft))


def read_pool_answers(folder: RunFolder) -> Columns | None:
    """The numbers of each row, where the run had a pool."""
    return _read(folder.predictions, NUMBERS)


def read_test_answers(folder: RunFolder) -> Columns | None:
    """The same with ``truth_index``, where there were test images and the run kept the answers."""
    return _read(folder.path / TEST_PREDICTIONS, [*NUMBERS, "truth_index"])


def _read(path: Path, names: list[str]) -> Columns | None:
    if not path.exists():
        return None
    table = pq.read_table(path, columns=names)
    return {name: table[name].to_numpy() for name in names}
