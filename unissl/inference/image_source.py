"""The images that ``Model.predict`` accepts: paths, folders, PIL images, arrays and tensors of any size.

Each is decoded, cropped and resized like an image file (:mod:`unissl.data.images.decode`), a chunk at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from unissl.data.folder.index import LINK_OUT
from unissl.data.folder.index import find_images as scan_images
from unissl.data.images.decode import Unreadable, decode_stream
from unissl.data.images.resize import to_pil
from unissl.errors import UserError
from unissl.types import Pixels
from unissl.utils.progress import log

CHANNELS = (1, 3, 4)
LAYOUT = "give one image (height, width, channels) or several (n, height, width, channels), with 1, 3 or 4 channels"


class DecodedChunk(NamedTuple):
    """Images of a chunk that could be read (m, h, w, channels), their positions in it, and by position the reasons why
    the others could not."""

    pixels: Pixels
    positions: list[int]
    reasons: dict[int, str]


@dataclass(frozen=True)
class ArrayImages:
    """Images (n, h, w, channels), uint8 or float, as uint8; floats are multiplied by ``scale``."""

    array: npt.NDArray[Any]
    scale: float

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: slice) -> Pixels:
        block = self.array[rows]
        if block.dtype == np.uint8:
            return np.asarray(block)
        return np.rint(np.asarray(block, dtype=np.float64) * self.scale).astype(np.uint8)


@dataclass(frozen=True)
class ImageSource:
    """Any number of images, decoded chunk by chunk."""

    items: Sequence[str | Image.Image | Pixels] | ArrayImages
    files: list[str] | None = None
    """The paths, if all images are files."""

    def __len__(self) -> int:
        return len(self.items)

    def decode(self, start: int, stop: int, shape: tuple[int, int, int]) -> DecodedChunk:
        """The images from ``start`` to ``stop`` in the ``shape`` (height, width, channels) of a model."""
        items = self.items[start:stop]
        if isinstance(items, np.ndarray) and items.shape[1:] == shape:
            return DecodedChunk(items, list(range(len(items))), {})
        height, width, channels = shape
        if height != width:
            raise UserError(
                f"The model takes images of height {height} and width {width}, which are not resized; give arrays of "
                f"shape (n, {height}, {width}, {channels})."
            )
        pixels = np.empty((len(items), *shape), dtype=np.uint8)
        positions: list[int] = []
        reasons: dict[int, str] = {}
        sources = enumerate(to_pil(item) if isinstance(item, np.ndarray) else item for item in items)
        for position, result in decode_stream(sources, height, channels):
            if isinstance(result, Unreadable):
                reasons[position] = str(result)
            else:
                pixels[len(positions)] = result.pixels
                positions.append(position)
        return DecodedChunk(pixels[: len(positions)], positions, reasons)


def open_images(images: Any) -> ImageSource:
    """A path, a folder, a PIL image, an array or tensor of one or more images, or a sequence of any of these."""
    if isinstance(images, ImageSource):
        return images
    if isinstance(images, np.ndarray | Tensor):
        return ImageSource(_check_array(images))
    if isinstance(images, str | os.PathLike | Image.Image):
        images = [images]
    if not isinstance(images, Iterable):
        raise UserError(f"{type(images).__name__} is no image; give paths, PIL images, an array or a tensor.")
    items: list[str | Image.Image | Pixels] = []
    for image in images:
        if isinstance(image, str | os.PathLike):
            items += find_images(Path(image))
        elif isinstance(image, Image.Image):
            items.append(image)
        elif isinstance(image, np.ndarray | Tensor):
            items += list(_check_array(image)[:])
        else:
            raise UserError(f"{type(image).__name__} is no image; give paths, PIL images, arrays or tensors.")
    if not items:
        raise UserError("There are no images to predict; give at least one.")
    files = [item for item in items if isinstance(item, str)]
    return ImageSource(items, files if len(files) == len(items) else None)


def find_images(path: Path) -> list[str]:
    """The file itself, or every image below the folder; links out of the folder are reported and not followed."""
    if path.is_file():
        return [os.fspath(path)]
    if not path.is_dir():
        raise UserError(f"There is no file or folder {path}; check the path.")
    scan = scan_images(path)
    for name in (name for name, reason in scan.skipped.items() if reason == LINK_OUT):
        log.warning("skipped %s: a link out of the folder; name it or its target to include it", path / name)
    files = [os.path.join(path, name) for name in scan.files]
    if not files:
        raise UserError(f"The folder {path} holds no images; name one that does.")
    return files


def _check_array(images: npt.NDArray[Any] | Tensor) -> ArrayImages:
    """Images (n, h, w, channels) with pixel values; a tensor may have its channels first, as torch has them."""
    array = _channels_last(images) if isinstance(images, Tensor) else images
    if array.ndim == 2 or (array.ndim == 3 and array.shape[-1] in CHANNELS):
        array = array[None]
    if array.ndim == 3:
        array = array[..., None] if array.shape[0] == 1 else array
    if array.ndim != 4 or array.shape[-1] not in CHANNELS or 0 in array.shape:
        raise UserError(f"An array of shape {tuple(images.shape)} is no image; {LAYOUT}.")
    if array.dtype == np.uint8:
        return ArrayImages(array, 1.0)
    if array.dtype.kind != "f":
        raise UserError(f"An array of {array.dtype} has no pixels; give uint8 from 0 to 255, or floats from 0 to 1.")
    low, high = float(array.min()), float(array.max())
    if not (low >= 0 and high <= 255):
        raise UserError(
            f"The array has values from {low:.4g} to {high:.4g}; give pixels that are not normalised, uint8 from 0 to "
            "255 or floats from 0 to 1."
        )
    return ArrayImages(array, 255.0 if high <= 1 else 1.0)


def _channels_last(tensor: Tensor) -> npt.NDArray[Any]:
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.float()
    if tensor.ndim in (3, 4) and tensor.shape[-3] in CHANNELS:
        tensor = tensor.movedim(-3, -1)
    return np.asarray(tensor.numpy())
