"""Issues of images that are used nevertheless, for the report: blank, tiny, multi-page, rotated by EXIF, and so on.

Nobody has looked at each of ten thousand photos, so the report lists these, though none of them stops a run. Each kind
is one bit: the issues of a million images take two megabytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import IntFlag, auto
from functools import reduce
from operator import or_

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image

from unissl.data.images.bounds import tiff_tag

Marks = npt.NDArray[np.uint16]
"""Issue flags of many images, one number each."""
ImageIssues = dict[str, tuple[str, ...]]
"""Message -> files, the most severe first."""

LARGE_PIXELS = 16_000_000
MIN_PIXELS = 16
MAX_ASPECT_RATIO = 4
PARTS_NOT_FRAMES = ("MPO", "PSD")
"""Formats whose further images are parts of the first: depth of a phone's photo, layers of a drawing."""
SAME_TYPE = {"MPO": "JPEG", "DIB": "BMP"}
"""Formats that share the suffix of another."""


class ImageIssue(IntFlag):
    """Kinds of issues, the most severe first, which is their order in the report."""

    BLANK = auto()
    TINY = auto()
    LONG = auto()
    FRAMES = auto()
    TRANSPARENT = auto()
    PRINT = auto()
    DEEP = auto()
    TURNED = auto()
    LARGE = auto()
    MISNAMED = auto()


NONE = ImageIssue(0)
MESSAGES = {
    ImageIssue.BLANK: "blank: one colour everywhere",
    ImageIssue.TINY: f"less than {MIN_PIXELS} pixels wide or high; scaled up",
    ImageIssue.LONG: "more than four times as long as wide; only its centre is used",
    ImageIssue.FRAMES: "has several frames or pages; only the first is used",
    ImageIssue.TRANSPARENT: "partly transparent; placed on white",
    ImageIssue.PRINT: "CMYK; converted to RGB",
    ImageIssue.DEEP: "more than 8 bits per channel; scaled to 8",
    ImageIssue.TURNED: "rotated or mirrored according to its EXIF orientation",
    ImageIssue.LARGE: f"more than {LARGE_PIXELS // 10**6} megapixels; a smaller copy would be read faster",
    ImageIssue.MISNAMED: "its suffix does not match its format; read by its content",
}
LOW_INFORMATION = tuple(
    MESSAGES[kind] for kind in (ImageIssue.BLANK, ImageIssue.TINY, ImageIssue.LONG, ImageIssue.FRAMES)
)
"""Issues that a person should review: a part of the image is lost, or it shows nothing."""


def header_issues(image: Image.Image, name: str | None, size: int) -> ImageIssue:
    """Issues that the header shows, before any pixel is decoded to a square of ``size``."""
    shorter, longer = min(image.size), max(image.size)
    found = {
        ImageIssue.TINY: shorter < min(MIN_PIXELS, size),
        ImageIssue.LONG: longer > MAX_ASPECT_RATIO * shorter,
        ImageIssue.LARGE: shorter * longer > LARGE_PIXELS,
        ImageIssue.PRINT: image.mode == "CMYK",
        ImageIssue.DEEP: _is_deep(image),
        ImageIssue.MISNAMED: name is not None and _is_misnamed(name, image.format),
        # Pillow rotates a TIFF when it decodes it, and drops the orientation.
        ImageIssue.TURNED: tiff_tag(image, ExifTags.Base.Orientation, 1) in range(2, 9),
    }
    return reduce(or_, (issue for issue, is_found in found.items() if is_found), NONE)


def is_transparent(image: Image.Image) -> bool:
    """Whether any pixel of a decoded image is transparent; many images have an opaque alpha channel."""
    if not image.has_transparency_data:
        return False
    alpha = image if "A" in image.getbands() else image.convert("RGBA")
    return bool(alpha.getchannel("A").getextrema()[0] != 255)


def is_blank(pixels: npt.NDArray[np.uint8]) -> bool:
    """Whether all pixels are equal."""
    values, channels = pixels.ravel(), pixels.shape[-1]
    return bool((values[channels:] == values[:-channels]).all())


def has_frames(image: Image.Image) -> bool:
    """Whether there are frames beside the first, which is used. Called last: seeking another may lose the first."""
    try:
        return image.format not in PARTS_NOT_FRAMES and bool(getattr(image, "is_animated", False))
    except Exception:  # Pillow's readers raise nearly every type there is on damaged files
        return True


def describe_issues(marks: Marks, name: Callable[[int], str]) -> ImageIssues:
    """Message -> names of the rows with that issue; ``name`` maps a row to its name."""
    rows_by_text = {text: np.flatnonzero(marks & kind.value) for kind, text in MESSAGES.items()}
    return {text: tuple(name(int(row)) for row in rows) for text, rows in rows_by_text.items() if len(rows)}


def merge_issues(parts: Sequence[Mapping[str, Sequence[str]]]) -> ImageIssues:
    """Issues of several tables or sources as one."""
    texts = dict.fromkeys(text for part in parts for text in part)
    return {text: tuple(file for part in parts for file in part.get(text, ())) for text in texts}


def _is_deep(image: Image.Image) -> bool:
    """16 bits or more, also where Pillow drops the lower half of each while it decodes."""
    if image.mode == "F" or image.mode.startswith("I"):
        return True
    return image.format in ("PNG", "TIFF") and any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))


def _is_misnamed(name: str, kind: str | None) -> bool:
    named = Image.registered_extensions().get(os.path.splitext(name)[1].lower(), "")
    return SAME_TYPE.get(named, named) != SAME_TYPE.get(kind or "", kind)
