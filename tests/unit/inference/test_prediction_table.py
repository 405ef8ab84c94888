"""The table of predictions: its schema, its columns in numpy, and its files."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unissl.errors import UserError
from unissl.evaluation.predictions import Predictions
from unissl.inference.prediction_table import (
    NOT_READ,
    NUMERIC_COLUMNS,
    SCHEMA,
    PredictionTable,
    prediction_table,
    to_arrow,
    to_records,
    write_table,
)
from unissl.inference.review import ReviewThresholds

PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4], [0.3, 0.3, 0.4]], dtype=np.float32)
THRESHOLDS = ReviewThresholds(confidence=0.6, outlier=0.55)


@pytest.fixture
def table() -> PredictionTable:
    """The second file was not read."""
    records = to_records(Predictions(PROBS), THRESHOLDS)
    records[1] = 0
    records["state"][1] = NOT_READ
    return PredictionTable(to_arrow(records, ["ant", "bee", "cat"], file=["a.png", "b.png", "c.png"]))


def test_columns_and_rows(table: PredictionTable) -> None:
    assert table.columns == ["file", "class", "class_index", "confidence", "margin", "outlier_score", "review"]
    assert table["class"].tolist() == ["ant", None, "cat"] and table["class_index"].tolist() == [0, -1, 2]
    np.testing.assert_array_equal(table["confidence"], np.float32([0.7, np.nan, 0.4]))
    assert table["review"].tolist() == [None, "unreadable", "outlier"]
    assert [row["class"] for row in table] == ["ant", None, "cat"] and len(table) == 3
    assert repr(table) == "PredictionTable(3 images, 1 outlier, 1 unreadable)"
    with pytest.raises(KeyError, match="no column 'look'"):
        table["look"]


def test_tables_of_every_kind_follow_the_schema() -> None:
    columns = {"row": [4, 5, 6], "truth": ["ant", None, "cat"], "truth_index": [0, -2, 2]}
    made = prediction_table(Predictions(PROBS), ["ant", "bee", "cat"], THRESHOLDS, columns).to_arrow()
    assert made.schema == pa.schema([field for field in SCHEMA if field.name != "file"])
    assert set(NUMERIC_COLUMNS) < set(SCHEMA.names)


def test_files_by_suffix(table: PredictionTable, tmp_path: Path) -> None:
    for name in ("t.csv", "t.parquet"):
        table.save(tmp_path / name)
        table.save(str(tmp_path / name))
    assert pq.read_table(tmp_path / "t.parquet").equals(table.to_arrow())
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    assert rows[0]["confidence"] == "0.7000" and rows[0]["class_index"] == "0" and rows[0]["review"] == ""
    assert rows[1] == {**dict.fromkeys(table.columns, ""), "file": "b.png", "review": "unreadable"}
    with pytest.raises(UserError, match=r"\.xlsx"):
        table.save(tmp_path / "t.xlsx")


def test_blocks_make_row_groups(table: PredictionTable, tmp_path: Path) -> None:
    write_table(tmp_path / "t.parquet", (table.to_arrow() for _ in range(130)))
    file = pq.ParquetFile(tmp_path / "t.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [192, 192, 6]


def test_pandas_is_optional(table: PredictionTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas"):
        table.to_pandas()
