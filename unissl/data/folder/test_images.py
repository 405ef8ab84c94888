"""Labelled images for a model that is already trained: its classes, size and channels are given."""

from __future__ import annotations

from pathlib import Path

from unissl.data.folder.index import index_test_folder
from unissl.data.folder.load import folder_table
from unissl.data.sources.parquet import parquet_test_table
from unissl.types import ImageTable


def load_test(place: Path, class_names: tuple[str, ...], size: int, channels: int) -> ImageTable:
    """A parquet file, or a folder with one subfolder per class."""
    if place.suffix == ".parquet":
        return parquet_test_table(place, class_names, size, channels)
    return folder_table(place, index_test_folder(place, class_names), size, channels)
