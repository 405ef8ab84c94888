"""A trained classifier as one ONNX file that any runtime can serve, without torch and without this package.

The graph takes pixels as they are, uint8 (batch, height, width, channels), and gives calibrated probabilities (batch,
classes) and the outlier score (batch,); normalisation is inside. What is left to the caller, decoding and resizing, is
written down in the manifest, which goes into the file and beside it. Nothing is left behind that does not agree with
torch.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unissl.data.images.decode import MARGIN
from unissl.errors import UserError
from unissl.inference.model import Model, outlier_score
from unissl.run_folder import write_atomically, write_json
from unissl.types import Outputs, Prediction

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4
"""Largest difference from torch in any probability or outlier score."""
FORMAT = "unissl-onnx-1"
METADATA = "unissl"
"""Key of the manifest in the metadata of the file."""

Images = npt.NDArray[np.uint8]


def require_packages() -> None:
    if any(importlib.util.find_spec(name) is None for name in PACKAGES):
        raise UserError("ONNX files need further packages; install them with: pip install 'unissl[onnx]'.")


def export_onnx(model: Model, manifest: Mapping[str, Any], out: Path, images: Images) -> float:
    """Write ``out`` and its manifest, if they agree with torch on ``images``; returns the largest difference."""
    require_packages()
    graph = onnx_graph(model)
    described = describe(manifest)
    entry = graph.metadata_props.add()
    entry.key, entry.value = METADATA, json.dumps(described)
    encoded: bytes = graph.SerializeToString()
    difference = disagreement(encoded, model, images)
    if not difference <= TOLERANCE:
        raise UserError(
            f"The exported network differs from the trained one by {difference:.1e} in probability, so it was not "
            f"written to {out}; please report this with the versions of torch, onnx and onnxruntime."
        )
    write_atomically(out, lambda draft: _write(draft, encoded))
    write_json(sidecar(out), described)
    return difference


def sidecar(out: Path) -> Path:
    """Where the manifest of an ONNX file is."""
    return out.with_name(f"{out.name}.json")


def describe(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """All that somebody needs who has nothing but the ONNX file."""
    kept = (
        "class_names",
        "height",
        "width",
        "channels",
        "temperature",
        "review_thresholds",
        "net",
        "method",
        "config",
        "unissl",
    )
    height, width, channels = (manifest[name] for name in ("height", "width", "channels"))
    mode = "L" if channels == 1 else "RGB"
    return {
        "format": FORMAT,
        **{name: manifest[name] for name in kept if name in manifest},
        "input": {
            "name": "images",
            "type": "uint8",
            "shape": ["batch", height, width, channels],
            "values": f"pixels 0..255 of mode {mode}; normalisation is in the graph",
        },
        "outputs": {
            "probabilities": {"type": "float32", "shape": ["batch", len(manifest["class_names"])]},
            "outlier_score": {"type": "float32", "shape": ["batch"], "values": "the higher, the less like any class"},
        },
        "preprocessing": preprocessing(height, width, mode),
    }


def preprocessing(height: int, width: int, mode: str) -> dict[str, Any]:
    """What :mod:`unissl.data.images.decode` does to a file, as settings and as steps in the words of Pillow."""
    coarse, least = MARGIN * min(height, width), 2 * MARGIN * min(height, width)
    return {
        "mode": mode,
        "exif_orientation": True,
        "background": "white",
        "crop": "centre square",
        "size": [height, width],
        "resample": "bilinear",
        "steps": [
            "open the file; of an animation take the first frame",
            f"a JPEG whose shorter side is at least {least} may be decoded coarser: image.draft(image.mode, "
            f"({coarse}, {coarse}))",
            "turn it upright: ImageOps.exif_transpose(image)",
            "16-bit grey: v * 255 / 65535, rounded; floats: times 255 if none is above 1; then cut to 0..255",
            "transparency: alpha_composite on white",
            f"convert to {mode}",
            "centre square: side = min(width, height), left = (width - side) // 2, top = (height - side) // 2",
            f"resize(({width}, {height}), BILINEAR, box=(left, top, left + side, top + side))",
            "an RGB image with a colour profile other than sRGB: convert its colours to sRGB",
            f"uint8 array of shape ({height}, {width}, {1 if mode == 'L' else 3})",
        ],
    }


class FromPixels(nn.Module):
    """Normalisation, network, probabilities: the whole way as one graph."""

    shift: Tensor
    scale: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        shown = [model.crop or size for size in model.size]
        starts = [(size - side) // 2 for size, side in zip(model.size, shown, strict=True)]
        self.rows, self.columns = (slice(start, start + side) for start, side in zip(starts, shown, strict=True))
        self.module = model.module
        self.register_buffer("shift", 255 * torch.tensor(model.mean, dtype=torch.float32)[:, None, None])
        self.register_buffer("scale", 255 * torch.tensor(model.std, dtype=torch.float32)[:, None, None])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        images = images[:, self.rows, self.columns]
        said: Outputs | Prediction = self.module((images.permute(0, 3, 1, 2).float() - self.shift) / self.scale)
        return said.logits.softmax(-1), outlier_score(said)


def onnx_graph(model: Model) -> Any:
    """The model as ``onnx.ModelProto``, for any number of images at once."""
    example = torch.zeros((3, *model.size, model.channels), dtype=torch.uint8)
    shapes = {"images": {0: torch.export.Dim("batch")}}
    module = FromPixels(model).eval()
    with _quiet():
        try:
            program = torch.export.export(module, (example,), dynamic_shapes=shapes)
        except Exception:  # len(tensor) in a network fixes the batch; the slower way through its bytecode does not
            program = torch.export.export(module, (example,), dynamic_shapes=shapes, strict=True)
        made = torch.onnx.export(
            program,
            (example,),
            dynamo=True,
            input_names=["images"],
            output_names=["probabilities", "outlier_score"],
            verbose=False,
        )
    assert made is not None
    return made.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """torch's exporter warns about its own deprecations, and that torchvision, which is not used, is not there."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def disagreement(encoded: bytes, model: Model, images: Images) -> float:
    """Largest difference between what onnxruntime and torch make of the images."""
    import onnxruntime

    session = onnxruntime.InferenceSession(encoded, providers=["CPUExecutionProvider"])
    largest = 0.0
    for start in range(0, len(images), model.batch):
        some = np.ascontiguousarray(images[start : start + model.batch])
        said = model.predict(some)
        probs, outlier = session.run(["probabilities", "outlier_score"], {"images": some})
        gaps = np.abs(probs - said.probs).max(), np.abs(outlier - said.outlier).max()
        largest = float(np.max([largest, *gaps]))  # keeps a NaN
    return largest


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
