"""unissl export"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unissl.inference.model import Model
    from unissl.inference.onnx import Images
    from unissl.run_folder import RunFolder

COMPARED = 256
"""Images on which the exported network must agree with the trained one."""


def export(run: Path, /, *, onnx: bool = False, out: Path | None = None) -> None:
    """Write the model of a run folder as one file that other programs can serve, checked against the original.

    The file takes raw pixels and gives probabilities; how to decode and resize an image is in the manifest beside it,
    which is in the file as well.

    Example: unissl export runs/first --onnx

    Parameters
    ----------
    run
        Run folder.
    onnx
        As ONNX, the one form there is; needs the packages of unissl[onnx].
    out
        File to write; an existing one is not overwritten. By default model.onnx in the run folder.
    """
    from unissl.cli.process import prepare_process
    from unissl.errors import UserError

    if not onnx:
        raise UserError("Name the form to export to; there is one, --onnx.")
    prepare_process()
    from unissl.inference.model import load_model, read_manifest
    from unissl.inference.onnx import export_onnx, require_packages, sidecar
    from unissl.run_folder import RunFolder

    folder = RunFolder(run)
    model = load_model(folder)
    target = folder.path / "model.onnx" if out is None else out
    for file in (target, sidecar(target)):
        if file.exists():
            raise UserError(f"{file} exists already; choose another --out.")
    require_packages()
    images, kind = images_to_compare(folder, model)
    difference = export_onnx(model, read_manifest(folder), target, images)
    megabytes = target.stat().st_size / 1e6
    print(f"{target} ({megabytes:.1f} MB): within {difference:.0e} of torch on {len(images)} {kind}")
    print(f"how to feed it: {sidecar(target)}")


def images_to_compare(folder: RunFolder, model: Model) -> tuple[Images, str]:
    """Some of the images of the run, spread over them, or noise where they are gone."""
    import numpy as np

    from unissl.config import read_toml
    from unissl.errors import UserError
    from unissl.run.config import build_config
    from unissl.splits.open_set import load_data

    shape = (*model.size, model.channels)
    try:
        config = build_config(read_toml(folder.config))
        images = load_data(config.data, config.split).train.images
        if images.shape[1:] == shape:
            chosen = np.unique(np.linspace(0, len(images) - 1, COMPARED).astype(np.int64))
            return np.asarray(images[chosen]), "images of the run"
    except UserError:
        pass  # the images have been moved or deleted, which is no reason not to ship the model
    return np.random.default_rng(0).integers(0, 256, (COMPARED, *shape), dtype=np.uint8), "images of noise"
