"""Open and read untrusted parquet files with bounds; errors are sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unissl.errors import UserError, names_memory_shortage, shortened
from unissl.utils.bounded_io import regular_path

MAX_ROWS = 50_000_000
"""Rows of a file; run-length encoding needs a few bytes for any number of them."""
MAX_GROUP_BYTES = 2 << 30
"""Uncompressed bytes of a row group, as announced by the file."""
MAX_SCHEMA_BYTES = 64 << 20
"""Size of texts and lists in the schema."""


@contextmanager
def intact(path: Path) -> Iterator[None]:
    """Turns errors of pyarrow into a sentence."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, MemoryError) or names_memory_shortage(str(error)):
            raise MemoryError from error  # pyarrow was refused memory or a thread: the file may be intact
        reason = shortened((str(error) or type(error).__name__).splitlines()[0].rstrip("."), 200)
        raise UserError(f"{path} is not an intact parquet file ({reason}); download it again.") from None


def open_parquet(path: Path) -> Any:
    """The ``pyarrow.parquet.ParquetFile``, if its announced sizes are within bounds."""
    import pyarrow.parquet as pq

    with intact(path), regular_path(path) as opened:
        file = pq.ParquetFile(
            opened, thrift_string_size_limit=MAX_SCHEMA_BYTES, thrift_container_size_limit=MAX_SCHEMA_BYTES
        )
        facts = file.metadata
        names = file.schema_arrow.names
        groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
        # Not the metadata of columns: pyarrow crashes on those of some damaged files.
        sizes = [group.total_byte_size for group in groups]
        rows = [facts.num_rows, *(group.num_rows for group in groups)]
    if len(set(names)) < len(names):
        raise UserError(f"{path} has two columns of the same name; rename one of them.")
    if min(rows) < 0 or sum(rows[1:]) != facts.num_rows or facts.num_rows > MAX_ROWS:
        raise UserError(f"{path} has a damaged row count, or more than {MAX_ROWS:,} rows; download or split it.")
    if any(not 0 <= size <= MAX_GROUP_BYTES for size in sizes):
        raise UserError(
            f"{path} has row groups of more than {MAX_GROUP_BYTES >> 30} GB; write it again with smaller ones."
        )
    return file


def read_columns(path: Path, file: Any, names: Sequence[str]) -> Any:
    """Whole columns as a table of exactly as many rows as the file announces."""
    with intact(path):
        table = file.read(columns=list(names), use_threads=False)
        table.validate(full=True)
    if table.num_rows != file.metadata.num_rows or table.column_names != list(names):
        raise UserError(f"{path} does not hold the rows it announces; download it again.")
    return table
