"""Every reader of ours, by name. A module is imported only when one of its readers is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path

from case import Reader

MODULES = {
    "archives": (
        "idx-images", "idx-images-gz", "idx-labels-gz",
        "cache-npy", "cache-manifest",
    ),
    "published": (
        "stl10-images", "stl10-labels", "food101-list", "food101-classes", "imagenet-npz", "imagenet-groups",
        "imagenet-wnids",
    ),
    "tables": ("parquet-file", "parquet-folder", "labels-csv", "labels-tsv", "image-folder"),
    "images": (
        "image-png", "image-jpeg", "image-gif", "image-bmp", "image-tiff", "image-webp",
    ),
    "texts": ("config-toml", "set"),
    "run_folder": (
        "split-json", "summary-json", "estimate-json", "metrics-jsonl", "predictions-parquet",
        "test-predictions-parquet", "prediction-draft", "report-page",
    ),
    "weights": (
        "model-safetensors", "manifest-json", "checkpoint", "backbone-safetensors", "backbone-manifest",
        "published-pth",
    ),
}  # fmt: skip
NAMES = {name: module for module, names in MODULES.items() for name in names}


def load(names: Iterable[str]) -> None:
    """Import all that these readers need, before the processes in which they read are forked."""
    for name in names:
        importlib.import_module(f"readers.{NAMES[name]}")


def make(name: str, home: Path) -> Reader:
    reader: Reader = importlib.import_module(f"readers.{NAMES[name]}").READERS[name](home)
    return reader
