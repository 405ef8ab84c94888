"""Predictions of files as a table that people read: CSV, or parquet. Written block by block, in constant memory."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from unissl.inference.predict_files import READ, Records
from unissl.inference.review import REASONS
from unissl.utils.file_names import writable

Row = tuple[str, str | None, float | None, float | None, float | None, str | None]
SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("class", pa.string()),
        ("confidence", pa.float32()),
        ("margin", pa.float32()),
        ("outlier_score", pa.float32()),
        ("review", pa.string()),
    ]
)
ROW_GROUP = 64
"""Blocks that make a row group of a parquet file."""


def table_rows(files: Sequence[str], blocks: Iterable[Records], class_names: Sequence[str]) -> Iterator[list[Row]]:
    """A row per file, block by block. ``review`` is why a person should look at it, None where nobody need."""
    start = 0
    for records in blocks:
        names = files[start : start + len(records)]
        yield [_row(name, record, class_names) for name, record in zip(names, records, strict=True)]
        start += len(records)


def _row(name: str, record: Any, class_names: Sequence[str]) -> Row:
    if record["state"] != READ:
        return writable(name), None, None, None, None, "unreadable"
    numbers = float(record["confidence"]), float(record["margin"]), float(record["outlier_score"])
    return writable(name), class_names[record["class"]], *numbers, REASONS[record["review"]]


def count_reviews(blocks: Iterable[Records]) -> dict[str, int]:
    """How many files there are to look at, by reason."""
    counts = {reason: 0 for reason in REASONS if reason} | {"unreadable": 0}
    for records in blocks:
        looks = records["review"][records["state"] == READ]
        counts["unreadable"] += len(records) - len(looks)
        for index, reason in enumerate(REASONS):
            if reason:
                counts[reason] += int((looks == index).sum())
    return counts


def write_csv(handle: TextIO, blocks: Iterable[list[Row]]) -> None:
    writer = csv.writer(handle)
    writer.writerow(SCHEMA.names)
    for block in blocks:
        for file, name, *numbers, look in block:
            writer.writerow([file, name, *("" if n is None else f"{n:.4f}" for n in numbers), look])


def write_parquet(path: Path, blocks: Iterable[list[Row]]) -> None:
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for group in _grouped(blocks):
            columns = [
                pa.array(column, field.type) for column, field in zip(zip(*group, strict=True), SCHEMA, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA))


def _grouped(blocks: Iterable[list[Row]]) -> Iterator[list[Row]]:
    group: list[Row] = []
    for number, block in enumerate(blocks, start=1):
        group += block
        if number % ROW_GROUP == 0:
            yield group
            group = []
    if group:
        yield group
