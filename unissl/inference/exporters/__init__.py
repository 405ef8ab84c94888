"""Exporters, one per file format and per module; a module in this folder is registered by being here
(docs/extend/exporter.md)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from unissl.config import check, read_toml
from unissl.data import DataConfig
from unissl.errors import UserError, did_you_mean
from unissl.inference.exporters.base import Exporter, Images, describe, max_difference
from unissl.inference.model import Model, load_model
from unissl.run_folder import RunFolder
from unissl.splits import SplitConfig
from unissl.splits.open_set import announce_data, load_data
from unissl.utils.atomic import write_atomically, write_json
from unissl.utils.plugins import classes_in_package

__all__ = ["Exported", "Exporter", "all_exporters", "export_model", "get_exporter"]

COMPARED = 256
"""Images on which the exported file must agree with the model."""
TOLERANCE = 1e-4
"""Largest difference from the model in any probability or outlier score."""


@dataclass(frozen=True)
class Exported:
    """A written file, its description, and its largest difference from the model on ``images`` images."""

    path: Path
    description: Path
    difference: float
    images: int
    compared_on: str


@cache
def all_exporters() -> dict[str, type[Exporter]]:
    """Format -> class, in alphabetical order."""
    return classes_in_package(sys.modules[__name__], Exporter, "format")  # type: ignore[type-abstract]


def get_exporter(format: str) -> Exporter:
    exporters = all_exporters()
    if format not in exporters:
        raise UserError(f"There is no export format {format!r}.{did_you_mean(format, list(exporters))}")
    return exporters[format]()


def export_model(run: str | Path | RunFolder, out: str | Path | None = None, format: str = "onnx") -> Exported:
    """Write the model of a run as one file that needs neither torch nor this package, and its description next to it.

    The file is compared with the model first, and not written if they disagree.

    Args:
        run: Run folder.
        out: File to write; by default ``model`` with the suffix of the format, in the run folder.
        format: Name of an exporter.
    """
    exporter, folder = get_exporter(format), run if isinstance(run, RunFolder) else RunFolder(run)
    model = load_model(folder)
    path = folder.path / f"model{exporter.suffix}" if out is None else Path(out)
    description_path = path.with_name(f"{path.name}.json")
    for file in (path, description_path):
        if file.exists():
            raise UserError(f"{file} exists already; choose another --out.")
    exporter.require_packages()
    images, compared_on = comparison_images(folder, model)
    description = describe(model.manifest, format)
    content = exporter.encode(model, description)
    difference = max_difference(exporter.load(content), model, images)
    if not difference <= TOLERANCE:
        raise UserError(
            f"The exported network differs from the trained one by {difference:.1e} in probability, so it was not "
            f"written to {path}; please report this with the versions of torch and of {', '.join(exporter.packages)}."
        )
    write_atomically(path, lambda partial: partial.write_bytes(content), overwrite=False)
    try:
        write_json(description_path, description, overwrite=False)
    except UserError:
        path.unlink()  # both or neither, so that the command can be repeated
        raise
    return Exported(path, description_path, difference, len(images), compared_on)


def comparison_images(folder: RunFolder, model: Model) -> tuple[Images, str]:
    """Images of the run at equal distances, or random pixels if the images are gone."""
    shape = model.manifest.image_shape
    try:
        config = read_toml(folder.config)
        data = check(DataConfig, config.get("data", {}), where="data")
        split = check(SplitConfig, config.get("split", {}), where="split")
        announce_data(data, split)
        dataset = load_data(data, split)
        if dataset.train.images.shape[1:] == shape:
            rows = np.unique(np.linspace(0, len(dataset.train) - 1, COMPARED).astype(np.int64))
            return np.asarray(dataset.train.images[rows]), "images of the run"
    except UserError:
        pass  # moved or deleted images are no reason not to export the model
    return np.random.default_rng(0).integers(0, 256, (COMPARED, *shape), dtype=np.uint8), "images of noise"
