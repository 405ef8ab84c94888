"""What decoding an image will take, from its header: bytes at the peak, and pixels over all scans of a JPEG.

A file of a few kilobytes can announce a hundred megapixels, and formats differ by a factor of ten in what these take.
The numbers per pixel were measured with Pillow 13 (``tests/stress/image_bounds.py``). The limits that they are compared
with are in :mod:`unissl.data.images.decode`.
"""

from __future__ import annotations

import os
from typing import IO

from PIL import ExifTags, Image

BLOCK = 1 << 20
PER_PIXEL = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
"""Bytes in which Pillow holds a pixel of a mode; 4 for all others, RGB too."""
WEBP_CANVAS, WEBP_FRAME = 8, 4
"""Bytes per pixel of libwebp's two canvases, held as long as the image, and of the frame that it hands over."""
COEFFICIENT = 2
"""Bytes of a coefficient of a JPEG."""
TILE, STRIP_ROWS, BITS, SAMPLES = (322, 323), 278, 258, 277
"""Tags of a TIFF."""
JPEG_IN_TIFF = ("jpeg", "tiff_jpeg")


def bytes_to_decode(image: Image.Image) -> int:
    """Bytes at the peak: pixels as they are stored, buffers of the decoder, and an opaque copy in 8 bits.

    Of a JPEG, without its coefficients, since it may be decoded at a coarser scale than theirs.
    """
    pixels = image.width * image.height
    stored = PER_PIXEL.get(image.mode, 4)
    canvas, frame = (WEBP_CANVAS, WEBP_FRAME) if image.format == "WEBP" else (0, 0)
    turned = stored if image.format == "TIFF" and tiff_tag(image, ExifTags.Base.Orientation, 1) != 1 else 0
    return pixels * (canvas + stored + max(frame, turned, _opaque_copy(image))) + _part_bytes(image)


def coefficient_bytes(image: Image.Image) -> int:
    """Bytes of the coefficients of a progressive JPEG, all of which are held until its last scan."""
    if image.format not in ("JPEG", "MPO") or not image.info.get("progressive"):
        return 0
    factors: list[int] = [across * down for _, across, down, _ in getattr(image, "layer", ())]
    return image.width * image.height * COEFFICIENT * sum(factors) // max(factors, default=1)


def bytes_to_turn(image: Image.Image) -> int:
    """Bytes at the peak while a decoded image is rotated: it, the rotated copy, and the opaque copy of that."""
    canvas = WEBP_CANVAS if image.format == "WEBP" else 0
    return image.width * image.height * (2 * PER_PIXEL.get(image.mode, 4) + canvas + _opaque_copy(image))


def scanned_pixels(image: Image.Image, file: IO[bytes]) -> tuple[int, int]:
    """Scans of a JPEG, also within a TIFF, and pixels that they pass over; ``(0, 0)`` for other files."""
    if image.format in ("JPEG", "MPO"):
        scans = _count_scans(file)
        return scans, scans * image.width * image.height
    if image.format == "TIFF" and image.info.get("compression") in JPEG_IN_TIFF:
        return 0, _count_scans(file) * _part_pixels(image)
    return 0, 0


def _opaque_copy(image: Image.Image) -> int:
    """Bytes per pixel of the copies in RGB, without transparency and with 8 bits per channel."""
    if image.mode.startswith("I") or image.mode == "F":
        return 1 + 4
    if image.mode == "P" and image.palette is None:  # damaged, and refused when it is decoded
        return 0
    if image.has_transparency_data:
        return 4 if "A" in image.getbands() else 4 + 1  # the alpha channel is made to be looked at
    return 0 if image.mode == "RGB" else 4


def _part_bytes(image: Image.Image) -> int:
    """Bytes of one strip or tile of a TIFF, which is decoded as a whole and may be larger than the image."""
    if image.format != "TIFF" or image.info.get("compression") == "raw":
        return 0
    bits = tiff_tag(image, BITS, (1,))
    deepest = max(bits) if isinstance(bits, tuple) and bits else 8
    return _part_pixels(image) * _number(tiff_tag(image, SAMPLES, 1)) * deepest // 8


def _part_pixels(image: Image.Image) -> int:
    wide, high = (_number(tiff_tag(image, tag, 0)) for tag in TILE)
    if wide and high:
        return wide * high
    return image.width * min(image.height, _number(tiff_tag(image, STRIP_ROWS, image.height)) or image.height)


def tiff_tag(image: Image.Image, tag: int, default: object) -> object:
    """The value of a tag in the header of a TIFF; ``default`` if there is none, or for other images."""
    try:
        return getattr(image, "tag_v2", {}).get(tag, default)
    except Exception:  # Pillow's readers raise nearly every type there is on damaged files
        return default


def _number(value: object) -> int:
    return value if isinstance(value, int) else 1 << 40  # more than one, or none: such a file is refused


def _count_scans(file: IO[bytes]) -> int:
    """Count the marker that begins a scan, which compressed pixels cannot contain; previews have a few more."""
    place = file.seek(0, os.SEEK_CUR)
    file.seek(0)
    scans, last = 0, b""
    while block := file.read(BLOCK):
        scans += (last + block).count(b"\xff\xda")
        last = block[-1:] if block.endswith(b"\xff") else b""
    file.seek(place)
    return scans
