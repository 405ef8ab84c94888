"""Data sources: files, archives and arrays, all turned into one :class:`unissl.types.ImageTable`."""

from unissl.data.arrays import from_arrays
from unissl.data.dataset import OWN_DATA, DataConfig, Dataset
from unissl.data.folder.index import FolderIndex, scan_folder
from unissl.data.folder.load import load_test
from unissl.data.images.decode import read_images
from unissl.data.registry import DatasetCard, known, load, names

__all__ = [
    "OWN_DATA",
    "DataConfig",
    "Dataset",
    "DatasetCard",
    "FolderIndex",
    "from_arrays",
    "known",
    "load",
    "load_test",
    "names",
    "read_images",
    "scan_folder",
]
