"""What is odd about an image that is used all the same, so that the report can tell of it.

Whoever has ten thousand photos has not looked at each. That some of them are black, a single pixel, or the first page
of many is worth a line, though none of it stops a run. One bit per kind: a million images are two megabytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import IntFlag, auto
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image

Marks = npt.NDArray[np.uint16]
"""Oddities of many images, one number each."""
ImageIssues = dict[str, tuple[str, ...]]
"""A sentence and the images it is about, the gravest first."""

LARGE_PIXELS = 16_000_000
FEW_PIXELS = 16
TIMES_AS_LONG = 4
PARTS_NOT_FRAMES = ("MPO", "PSD")
"""Formats whose further images belong to the first: depth of a phone's photo, layers of a drawing."""
SAME_TYPE = {"MPO": "JPEG", "DIB": "BMP"}
"""Formats that go by the suffix of another."""


class ImageIssue(IntFlag):
    """The gravest first, as they are told."""

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
    ImageIssue.BLANK: "one colour all over; shows nothing",
    ImageIssue.TINY: f"less than {FEW_PIXELS} pixels wide or high; blown up",
    ImageIssue.LONG: "more than four times as long as wide; only its middle is used",
    ImageIssue.FRAMES: "has several frames or pages; only the first is used",
    ImageIssue.TRANSPARENT: "partly transparent; shown on white",
    ImageIssue.PRINT: "in the colours of print (CMYK); converted to RGB",
    ImageIssue.DEEP: "more than 8 bits per channel; scaled to 8",
    ImageIssue.TURNED: "stored on its side or mirrored; turned as its EXIF note says",
    ImageIssue.LARGE: f"more than {LARGE_PIXELS // 10**6} megapixels; a smaller copy would be read faster",
    ImageIssue.MISNAMED: "its name does not say of which type it is; read by its content",
}
LOW_INFORMATION = tuple(
    MESSAGES[kind] for kind in (ImageIssue.BLANK, ImageIssue.TINY, ImageIssue.LONG, ImageIssue.FRAMES)
)
"""What a person should look at: something of the image is lost, or was never there."""


def header_issues(image: Image.Image, name: str | None, size: int) -> ImageIssue:
    """What shows before a single pixel is decoded to a square of ``size``."""
    shorter, longer = min(image.size), max(image.size)
    found = NONE
    if shorter < min(FEW_PIXELS, size):
        found |= ImageIssue.TINY
    if longer > TIMES_AS_LONG * shorter:
        found |= ImageIssue.LONG
    if shorter * longer > LARGE_PIXELS:
        found |= ImageIssue.LARGE
    if image.mode == "CMYK":
        found |= ImageIssue.PRINT
    if _is_deep(image):
        found |= ImageIssue.DEEP
    if name is not None and _type_of_name(name) != SAME_TYPE.get(image.format or "", image.format):
        found |= ImageIssue.MISNAMED
    if _is_tiff_on_its_side(image):
        found |= ImageIssue.TURNED
    return found


def is_seen_through(image: Image.Image) -> bool:
    """Whether a pixel of a decoded image is transparent; many have a channel for it that says that none is."""
    if not image.has_transparency_data:
        return False
    alpha = image if "A" in image.getbands() else image.convert("RGBA")
    return bool(alpha.getchannel("A").getextrema()[0] != 255)


def is_blank(pixels: npt.NDArray[np.uint8]) -> bool:
    """Whether each pixel is like the one before it."""
    values, channels = pixels.ravel(), pixels.shape[-1]
    return bool((values[channels:] == values[:-channels]).all())


def has_frames(image: Image.Image) -> bool:
    """Whether there are more than the one that is used. Asked last: looking for another may lose the first."""
    try:
        return image.format not in PARTS_NOT_FRAMES and bool(getattr(image, "is_animated", False))
    except Exception:  # Pillow's readers raise nearly every type there is on damaged files
        return True


def describe_issues(marks: Marks, name: Callable[[int], str]) -> ImageIssues:
    found = {text: np.flatnonzero(marks & kind.value) for kind, text in MESSAGES.items()}
    return {text: tuple(name(int(row)) for row in rows) for text, rows in found.items() if len(rows)}


def merge_issues(parts: Sequence[Mapping[str, Sequence[str]]]) -> ImageIssues:
    """Remarks of several tables, or of several kinds, as one."""
    texts = dict.fromkeys(text for part in parts for text in part)
    return {text: tuple(file for part in parts for file in part.get(text, ())) for text in texts}


def _is_deep(image: Image.Image) -> bool:
    """16 bits or more, also where Pillow drops the lower half of each while it decodes."""
    if image.mode == "F" or image.mode.startswith("I"):
        return True
    return image.format in ("PNG", "TIFF") and any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))


def _is_tiff_on_its_side(image: Image.Image) -> bool:
    """Pillow turns these while it decodes them, and forgets."""
    try:
        return getattr(image, "tag_v2", {}).get(ExifTags.Base.Orientation, 1) in range(2, 9)
    except Exception:  # see has_frames
        return False


def _type_of_name(name: str) -> str | None:
    return _types().get(os.path.splitext(name)[1].lower())


@lru_cache(maxsize=1)
def _types() -> Mapping[str, str]:
    known = Image.registered_extensions()
    return {suffix: SAME_TYPE.get(kind, kind) for suffix, kind in known.items()}
