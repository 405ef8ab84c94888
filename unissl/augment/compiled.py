"""Views on the CPU: one compiled loop, in which an image stays in the processor's cache from crop to cutout.

Does byte for byte what the operations on tensors do (``randaugment``, ``crop``, ``cutout``), which serve every other
device, and Pythons for which there is no numba. All of it is in one file, because numba keeps compiled code on disk and
recompiles only when the file of the outermost function has changed. After a change of an imported number, touch this
file too.

Operations change one image, uint8 (H, W, C), in place; ``levels`` are its bytes in one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from unissl.augment.geometry import Floats, Ints, Terms
from unissl.augment.levels import LUMA
from unissl.augment.randaugment import COLOUR, GREY

Function = TypeVar("Function", bound=Callable[..., Any])
Bytes = npt.NDArray[np.uint8]

RED, GREEN, BLUE = LUMA
SQUARE = np.array(COLOUR, np.uint8)
CODES = {
    "AutoContrast": (AUTOCONTRAST := 0),
    "Brightness": (BRIGHTNESS := 1),
    "Color": (COLOR := 2),
    "Contrast": (CONTRAST := 3),
    "Equalize": (EQUALIZE := 4),
    "Posterize": (POSTERIZE := 5),
    "Sharpness": (SHARPNESS := 6),
    "Solarize": (SOLARIZE := 7),
}
"""Operations of ``randaugment.OPERATIONS`` that change levels, by name. Positions in that table must not be compiled
in: numba caches this file's code by this file alone."""


def compiled(function: Function) -> Function:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return cast(Function, numba.njit(cache=True, **options)(function))
    except RuntimeError:  # there is no folder to keep compiled code in
        return cast(Function, numba.njit(**options)(function))


@compiled
def crop_all(images: Bytes, rows: Terms, columns: Terms, out: Bytes) -> None:
    """Fill ``out``: pixel (y, x) of image i from pixel (rows[i, y], columns[i, x]) of images[i]."""
    for i in range(len(images)):
        crop(images[i], rows[i], columns[i], out[i])


@compiled
def strong_all(
    images: Bytes,
    window: tuple[Terms, ...],
    operations: tuple[Ints, Floats, Ints],
    source: tuple[Terms, ...],
    rectangles: Ints,
    out: Bytes,
) -> None:
    """Crop each image (see ``crop_all``), apply its operations and fill its rectangle.

    ``window`` are rows and columns of the crops. ``operations`` are codes (n, slots), those of ``CODES`` or -1,
    magnitudes as of ``randaugment.choose``, and, for an operation that moves pixels, its row in the four tables of
    ``source`` (``geometry.Source``), -1 elsewhere. ``rectangles`` are first and last row, first and last column.
    """
    rows, columns = window
    codes, magnitudes, which = operations
    x, y, x_by_row, y_by_column = source
    size = out[0].size
    spare = np.zeros(size + 3, np.uint8)  # a copy of an image, and a black pixel
    for i in range(len(images)):
        image = out[i]
        levels = image.reshape(-1)
        crop(images[i], rows[i], columns[i], image)
        for slot in range(codes.shape[1]):
            move = which[i, slot]
            if move >= 0:
                spare[:size] = levels
                warp(spare, x[move], y[move], x_by_row[move], y_by_column[move], image)
            else:
                change(image, codes[i, slot], magnitudes[i, slot], spare[:size])
        fill(image, rectangles[i])


@compiled
def crop(source: Bytes, rows: Terms, columns: Terms, image: Bytes) -> None:
    height, width, channels = image.shape
    for y in range(height):
        row = source[rows[y]]
        for x in range(width):
            column = columns[x]
            if channels == 3:
                image[y, x, 0] = row[column, 0]
                image[y, x, 1] = row[column, 1]
                image[y, x, 2] = row[column, 2]
            else:
                image[y, x, 0] = row[column, 0]


@compiled
def warp(source: Bytes, x: Terms, y: Terms, x_by_row: Terms, y_by_column: Terms, image: Bytes) -> None:
    """Each pixel from its position in ``geometry.Source``; outside of the image, the black pixel after ``source``."""
    height, width, channels = image.shape
    black = height * width * channels
    red, green, blue = source, source[1:], source[2:]
    offsets = np.empty(width, np.uint32)  # unsigned, or each access would test for a negative index
    for row in range(height):
        out = image[row].reshape(-1)
        for column in range(width):
            across = (x[column] + x_by_row[row]) >> 16
            down = (y[row] + y_by_column[column]) >> 16
            inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)
            offsets[column] = (down * width + across) * channels if inside else black
        if channels == 3:
            for column in range(width):
                offset = offsets[column]
                out[3 * column] = red[offset]
                out[3 * column + 1] = green[offset]
                out[3 * column + 2] = blue[offset]
        else:
            for column in range(width):
                out[column] = source[offsets[column]]


@compiled
def fill(image: Bytes, rectangle: Ints) -> None:
    top, bottom, left, right = rectangle
    channels = image.shape[2]
    for y in range(top, bottom + 1):
        for x in range(left, right + 1):
            for channel in range(channels):
                image[y, x, channel] = SQUARE[channel] if channels == 3 else GREY


@compiled
def change(image: Bytes, code: int, magnitude: float, spare: Bytes) -> None:
    """``spare`` is room for as many bytes as the image has."""
    levels = image.reshape(-1)
    factor = np.float32(magnitude)
    if code == AUTOCONTRAST:
        autocontrast(image)
    elif code == BRIGHTNESS:
        fade(levels, np.float32(0), factor)
    elif code == COLOR:
        color(levels, image.shape[2], factor, spare)
    elif code == CONTRAST:
        fade(levels, mean_grey(levels, image.shape[2]), factor)
    elif code == EQUALIZE:
        equalize(image)
    elif code == POSTERIZE:
        mask = np.uint8(256 - 2 ** (8 - int(magnitude)))
        for i in range(len(levels)):
            levels[i] &= mask
    elif code == SHARPNESS:
        sharpness(image, factor, spare)
    elif code == SOLARIZE:
        first = int(np.ceil(magnitude))
        for i in range(len(levels)):
            levels[i] = levels[i] if levels[i] < first else 255 - levels[i]


@compiled
def fade(levels: Bytes, poor: np.float32, factor: np.float32) -> None:
    """From the level ``poor``: one rounding for the product, one for the sum, then the fraction is cut off."""
    for i in range(len(levels)):
        levels[i] = np.uint8((np.float32(levels[i]) - poor) * factor + poor)


@compiled
def grey(red: np.uint8, green: np.uint8, blue: np.uint8) -> np.int32:
    return (RED * np.int32(red) + GREEN * np.int32(green) + BLUE * np.int32(blue) + 32768) >> 16


@compiled
def color(levels: Bytes, channels: int, factor: np.float32, spare: Bytes) -> None:
    """Fade from grey."""
    if channels == 3:
        for i in range(0, len(levels), 3):
            spare[i] = spare[i + 1] = spare[i + 2] = grey(levels[i], levels[i + 1], levels[i + 2])
        for i in range(len(levels)):
            poor = np.float32(spare[i])
            levels[i] = np.uint8((np.float32(levels[i]) - poor) * factor + poor)


@compiled
def mean_grey(levels: Bytes, channels: int) -> np.float32:
    pixels, total = len(levels) // channels, np.int64(0)
    if channels == 3:
        for i in range(0, len(levels), 3):
            total += grey(levels[i], levels[i + 1], levels[i + 2])
    else:
        for i in range(len(levels)):
            total += levels[i]
    return np.float32((2 * total + pixels) // (2 * pixels))  # nearest, halves up


@compiled
def sharpness(image: Bytes, factor: np.float32, spare: Bytes) -> None:
    """Fade from the smoothed image: weights 1 around 5, rounded. The border stays."""
    height, width, channels = image.shape
    levels, row = image.reshape(-1), width * channels
    spare[:] = levels
    # In one row of bytes the neighbours are a pixel and a row apart. Sums that run over a side are wrong, and undone.
    above, here, below = spare, spare[row:], spare[2 * row :]
    sums = np.empty(len(below), np.int16)
    for k in range(len(sums)):
        sums[k] = np.int16(above[k]) + np.int16(here[k]) + np.int16(below[k])
    left, middle, right = sums, sums[channels:], sums[2 * channels :]
    centre, out = spare[row + channels :], levels[row + channels :]
    for k in range(len(right)):
        total = np.int32(left[k] + middle[k] + right[k] + 4 * np.int16(centre[k]))
        poor = np.float32((total + 6) // 13)
        out[k] = np.uint8((np.float32(centre[k]) - poor) * factor + poor)
    for y in range(1, height - 1):
        for k in range(y * row, y * row + channels):
            levels[k] = spare[k]
            levels[k + row - channels] = spare[k + row - channels]


@compiled
def autocontrast(image: Bytes) -> None:
    """Stretch each channel to the full range."""
    table = np.empty(256, np.uint8)
    for channel in range(image.shape[2]):
        part = image[:, :, channel]
        low, high = part[0, 0], part[0, 0]
        for row in part:
            for level in row:
                low, high = min(low, level), max(high, level)
        if high > low:
            scale = 255.0 / (high - low)
            for level in range(256):
                table[level] = np.uint8(min(max(level * scale - low * scale, 0.0), 255.0))
            look_up(part, table)


@compiled
def equalize(image: Bytes) -> None:
    """Flatten the histogram of each channel."""
    table = np.empty(256, np.uint8)
    for channel in range(image.shape[2]):
        part = image[:, :, channel]
        counts = np.zeros(256, np.int64)
        for row in part:
            for level in row:
                counts[level] += 1
        brightest = 255
        while counts[brightest] == 0:
            brightest -= 1
        step = (part.size - counts[brightest]) // 255
        if step:
            darker = step // 2
            for level in range(256):
                table[level] = np.uint8(min(darker // step, 255))
                darker += counts[level]
            look_up(part, table)


@compiled
def look_up(part: Bytes, table: Bytes) -> None:
    height, width = part.shape
    for y in range(height):
        for x in range(width):
            part[y, x] = table[part[y, x]]
