"""The table of predictions: its columns are declared here, for predictions.parquet and test_predictions.parquet of a
run, for the CSV and Parquet files of ``unissl predict``, and for ``Model.predict``.

To add a column that follows from the probabilities, add it to ``NUMERIC_COLUMNS`` and to ``Predictions``, and raise
``FORMAT`` in :mod:`unissl.inference.journal`, whose records have these columns.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from unissl.errors import UserError, visible
from unissl.evaluation.predictions import Predictions
from unissl.inference.review import REASONS, UNREADABLE, ReviewThresholds
from unissl.types import UNLABELLED
from unissl.utils.atomic import write_atomically
from unissl.utils.csv_cells import to_cell
from unissl.utils.file_names import writable
from unissl.utils.parquet_file import open_parquet, read_columns


class NumericColumn(NamedTuple):
    """A numeric column: how a record stores it, its type in the table, and its values (n,) from the predictions."""

    stored: str
    type: pa.DataType
    compute: Callable[[Predictions], npt.NDArray[Any]]


NUMERIC_COLUMNS = {
    "class_index": NumericColumn("<i4", pa.int64(), lambda predictions: predictions.classes),
    "confidence": NumericColumn("<f4", pa.float32(), lambda predictions: predictions.confidence),
    "margin": NumericColumn("<f4", pa.float32(), lambda predictions: predictions.margin),
    "outlier_score": NumericColumn("<f4", pa.float32(), lambda predictions: predictions.outlier_score),
}
SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("row", pa.int64()),
        ("truth", pa.string()),
        ("truth_index", pa.int64()),
        ("class", pa.string()),
        *((name, column.type) for name, column in NUMERIC_COLUMNS.items()),
        ("review", pa.string()),
    ]
)
"""All columns in their order. Tables have ``file`` or ``row`` or both; ``truth`` and ``truth_index`` are for test
images (-2 and no name: out of distribution)."""

READ, NOT_READ = 1, 2
"""States of a record; 0 is no state, so that an empty disk block does not pass for records."""
RECORD = np.dtype(
    [("state", "u1"), ("review", "u1"), *((name, column.stored) for name, column in NUMERIC_COLUMNS.items())]
)
"""The prediction of one image in fixed size; ``review`` is an index into :data:`unissl.inference.review.REASONS`."""
Records = npt.NDArray[np.void]

ROW_GROUP = 64
"""Blocks of a row group of a Parquet file."""
TABLE_SUFFIXES = (".csv", ".parquet")


def to_records(predictions: Predictions, thresholds: ReviewThresholds) -> Records:
    """A record for each prediction (n,)."""
    records = np.zeros(len(predictions.probs), dtype=RECORD)
    records["state"] = READ
    records["review"] = thresholds.reasons(predictions)
    for name, column in NUMERIC_COLUMNS.items():
        records[name] = column.compute(predictions)
    return records


def to_arrow(records: Records, class_names: Sequence[str], **columns: Sequence[Any]) -> pa.Table:
    """Columns of records (n,) after ``columns``, which identify the images (``file``, ``row``, ``truth``)."""
    unreadable = records["state"] != READ
    arrays: dict[str, Any] = dict(columns)
    for name in NUMERIC_COLUMNS:
        values = records[name].astype(np.int64) if pa.types.is_integer(NUMERIC_COLUMNS[name].type) else records[name]
        arrays[name] = pa.array(values, mask=unreadable)
    arrays["class"] = pa.array(np.array(class_names, dtype=object)[records["class_index"]], mask=unreadable)
    arrays["review"] = np.where(unreadable, UNREADABLE, np.array(REASONS, dtype=object)[records["review"]])
    schema = pa.schema([field for field in SCHEMA if field.name in arrays])
    return pa.table({name: arrays[name] for name in schema.names}, schema=schema)


class PredictionTable:
    """Predictions, one row per image, in the order of the images.

    ``table["class"]`` is a column as a numpy array; a missing class is None, its index -1, a missing number NaN.
    Iteration yields each row as a dictionary, with None for missing values.
    """

    def __init__(self, arrow: pa.Table) -> None:
        self._arrow = arrow

    @classmethod
    def read(cls, path: Path) -> PredictionTable:
        """The table of a Parquet file that a run or ``unissl predict`` has written."""
        file = open_parquet(path)
        return cls(read_columns(path, file, file.schema_arrow.names))

    def __len__(self) -> int:
        return int(self._arrow.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._arrow.to_batches(max_chunksize=1024):
            yield from batch.to_pylist()

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        if column not in self.columns:
            raise KeyError(f"no column {column!r}; there are {', '.join(self.columns)}")
        values = self._arrow[column]
        if pa.types.is_integer(values.type):
            values = values.fill_null(UNLABELLED)
        return np.asarray(values.to_numpy())

    def __repr__(self) -> str:
        flags = "".join(f", {count} {reason}" for reason, count in self.count_reviews().items() if count)
        return f"PredictionTable({len(self)} images{flags})"

    @property
    def columns(self) -> list[str]:
        return list(self._arrow.column_names)

    def count_reviews(self) -> dict[str, int]:
        """Number of images to review, by reason."""
        reviews = self._arrow["review"].to_pylist()
        return {reason: reviews.count(reason) for reason in (*REASONS[1:], UNREADABLE)}

    def to_arrow(self) -> pa.Table:
        return self._arrow

    def to_pandas(self) -> Any:
        """A pandas.DataFrame."""
        try:
            importlib.import_module("pandas")
        except ImportError:
            raise UserError("pandas is not installed; install it with pip install pandas, or use to_arrow().") from None
        return self._arrow.to_pandas()

    def save(self, path: str | Path) -> None:
        """Write a .csv or .parquet file, by the suffix; an existing file is replaced."""
        write_table(Path(path), [self._arrow])


def count_reviews(blocks: Iterable[Records]) -> dict[str, int]:
    """Number of images to review, by reason."""
    counts = dict.fromkeys((*REASONS[1:], UNREADABLE), 0)
    for records in blocks:
        reviews = records["review"][records["state"] == READ]
        counts[UNREADABLE] += len(records) - len(reviews)
        for index, reason in enumerate(REASONS[1:], start=1):
            counts[reason] += int((reviews == index).sum())
    return counts


def confident(records: Records, threshold: float) -> npt.NDArray[np.bool_]:
    """Which records (n,) are predictions with at least this confidence."""
    return np.asarray((records["state"] == READ) & (records["confidence"] >= np.float32(threshold)))


def file_tables(files: Sequence[str], blocks: Iterable[Records], class_names: Sequence[str]) -> Iterator[pa.Table]:
    """A table for each block of records of ``files``, in their order."""
    start = 0
    for records in blocks:
        yield to_arrow(records, class_names, file=[writable(name) for name in files[start : start + len(records)]])
        start += len(records)


def write_table(path: Path, tables: Iterable[pa.Table], *, overwrite: bool = True) -> None:
    """Write tables one after another as CSV, or as Parquet if the suffix says so, in constant memory."""
    if path.suffix.lower() not in ("", *TABLE_SUFFIXES):
        raise UserError(f"A table cannot be written as {path.suffix}; end the name of {path} in .csv or .parquet.")

    def write(partial: Path) -> None:
        if path.suffix.lower() == ".parquet":
            _write_parquet(partial, tables)
            return
        with partial.open("w", encoding="utf-8", newline="") as handle:
            write_csv(handle, tables)

    write_atomically(path, write, overwrite=overwrite)


def write_csv(handle: TextIO, tables: Iterable[pa.Table], *, escape_controls: bool = False) -> None:
    """Numbers with four decimals; a missing value is an empty cell, and text is no formula (:func:`to_cell`).

    ``escape_controls`` is for standard output, which may be a terminal: names are then written without control
    characters.
    """

    def text_cell(text: str | None) -> str | None:
        return text and to_cell(visible(text) if escape_controls else text)

    writer = csv.writer(handle)
    for index, table in enumerate(tables):
        if index == 0:
            writer.writerow(table.column_names)
        columns = [column.to_pylist() for column in table.columns]
        for column, field in zip(columns, table.schema, strict=True):
            if pa.types.is_floating(field.type):
                column[:] = ["" if value is None else f"{value:.4f}" for value in column]
            elif pa.types.is_string(field.type):
                column[:] = [text_cell(text) for text in column]
        writer.writerows(zip(*columns, strict=True))


def _write_parquet(path: Path, tables: Iterable[pa.Table]) -> None:
    remaining = iter(tables)
    group = [first := next(remaining)]
    # pyarrow opens no path that is not UTF-8
    with path.open("wb") as file, pq.ParquetWriter(file, first.schema) as writer:
        for table in remaining:
            if len(group) == ROW_GROUP:
                writer.write_table(pa.concat_tables(group))
                group = []
            group.append(table)
        writer.write_table(pa.concat_tables(group))


def prediction_table(
    predictions: Predictions, class_names: Sequence[str], thresholds: ReviewThresholds, columns: Mapping[str, Any]
) -> PredictionTable:
    """The table of predictions (n,) after ``columns``, which identify the images."""
    return PredictionTable(to_arrow(to_records(predictions, thresholds), class_names, **columns))
