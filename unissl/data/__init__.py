"""Data sources: files, archives and arrays, all turned into one :class:`unissl.types.ImageTable`."""

from unissl.data.arrays import from_arrays
from unissl.data.catalogue import DatasetCard, known, load, names
from unissl.data.dataset import DataConfig, Dataset
from unissl.data.decode import read_images
from unissl.data.layout import list_images
from unissl.data.testing import load_test

__all__ = [
    "DataConfig",
    "Dataset",
    "DatasetCard",
    "from_arrays",
    "known",
    "list_images",
    "load",
    "load_test",
    "names",
    "read_images",
]
