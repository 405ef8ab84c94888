"""The interface of an exporter, and what all formats share: the network from pixels to probabilities, and its
description.

An exported file takes uint8 pixels (batch, height, width, channels) and returns calibrated probabilities (batch,
classes) and outlier scores (batch,); normalisation is inside. Decoding and resizing are left to the caller and are
specified in the description.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unissl.data.images.decode import MARGIN
from unissl.errors import UserError
from unissl.evaluation.predictions import outlier_scores_of
from unissl.inference.manifest import Manifest
from unissl.inference.model import Model
from unissl.types import Outputs, Prediction

Images = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Runtime = Callable[[Images], tuple[Floats, Floats]]
"""uint8 images (n, h, w, channels) to probabilities (n, C) and outlier scores (n,)."""


class Exporter(ABC):
    """Writes a model as one file, and runs that file so that it can be compared with the model."""

    format: ClassVar[str]
    """Value of ``--format``."""
    suffix: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages that must be installed."""
    install: ClassVar[str] = ""
    """Arguments of ``pip install`` that install them."""

    def require_packages(self) -> None:
        if any(importlib.util.find_spec(name) is None for name in self.packages):
            raise UserError(
                f"The format {self.format} needs further packages; install them with: pip install {self.install}."
            )

    @abstractmethod
    def encode(self, model: Model, description: Mapping[str, Any]) -> bytes:
        """Content of the file; ``description`` is JSON to be stored in it if the format has metadata."""

    @abstractmethod
    def load(self, content: bytes) -> Runtime:
        """The file's content as a function, run by the runtime of the format."""


class FromPixels(nn.Module):
    """Crop, normalisation, network and softmax as one module: uint8 images to probabilities and outlier scores."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        _, *sides = model.manifest.input_shape
        starts = [(size - side) // 2 for size, side in zip(model.size, sides, strict=True)]
        self.rows, self.columns = (slice(start, start + side) for start, side in zip(starts, sides, strict=True))
        self.module = model.module
        self.shift = nn.Buffer(255 * torch.tensor(model.manifest.mean, dtype=torch.float32)[:, None, None])
        self.scale = nn.Buffer(255 * torch.tensor(model.manifest.std, dtype=torch.float32)[:, None, None])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        images = images[:, self.rows, self.columns]
        outputs: Outputs | Prediction = self.module((images.permute(0, 3, 1, 2).float() - self.shift) / self.scale)
        return outputs.logits.softmax(-1), outlier_scores_of(outputs)


def export_program(model: Model) -> tuple[torch.export.ExportedProgram, Tensor]:
    """:class:`FromPixels` as a torch.export program for any number of images, and an example input."""
    example = torch.zeros((3, *model.manifest.image_shape), dtype=torch.uint8)
    shapes = {"images": {0: torch.export.Dim("batch")}}
    module = FromPixels(model).eval()
    try:
        return torch.export.export(module, (example,), dynamic_shapes=shapes), example
    except Exception:  # len(tensor) in a network fixes the batch; the slower tracing of its bytecode does not
        return torch.export.export(module, (example,), dynamic_shapes=shapes, strict=True), example


def max_difference(runtime: Runtime, model: Model, images: Images) -> float:
    """Largest difference in any probability or outlier score between an exported file and its model."""
    largest = 0.0
    for start in range(0, len(images), model.batch_size):
        batch = np.ascontiguousarray(images[start : start + model.batch_size])
        predictions = model.predict_pixels(batch)
        probs, outlier_score = runtime(batch)
        gaps = np.abs(probs - predictions.probs).max(), np.abs(outlier_score - predictions.outlier_score).max()
        largest = float(np.max([largest, *gaps]))  # keeps a NaN
    return largest


def describe(manifest: Manifest, format: str) -> dict[str, Any]:
    """Everything that a caller needs who has nothing but the exported file."""
    stored = {"class_names", "height", "width", "channels", "calibration", "review_thresholds"}
    height, width, channels = manifest.image_shape
    mode = "L" if channels == 1 else "RGB"
    return {
        "format": f"unissl-{format}-1",
        **manifest.model_dump(include=stored | {"net", "method", "config", "unissl"}),
        "input": {
            "name": "images",
            "type": "uint8",
            "shape": ["batch", height, width, channels],
            "values": f"pixels 0..255 of mode {mode}; normalisation is in the graph",
        },
        "outputs": {
            "probabilities": {"type": "float32", "shape": ["batch", len(manifest.class_names)]},
            "outlier_score": {"type": "float32", "shape": ["batch"], "values": "the higher, the less like any class"},
        },
        "preprocessing": preprocessing(height, width, mode),
    }


def preprocessing(height: int, width: int, mode: str) -> dict[str, Any]:
    """The preprocessing of :mod:`unissl.data.images.decode`, as parameters and as steps in terms of Pillow."""
    coarse, min_side = MARGIN * min(height, width), 2 * MARGIN * min(height, width)
    return {
        "mode": mode,
        "exif_orientation": True,
        "background": "white",
        "crop": "centre square",
        "size": [height, width],
        "resample": "bilinear",
        "steps": [
            "open the file; of an animation take the first frame",
            f"a JPEG whose shorter side is at least {min_side} may be decoded coarser: image.draft(image.mode, "
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
