"""Operations that fade an image into a poorer version of itself, bit for bit as Pillow's ImageEnhance.

The fade works in float32 with one rounding for the product and one for the sum, then cuts off the fraction. Pillow does
the same where its compiler does not fuse the two (the x86-64 wheels; a fused build can differ by one grey level).
The poorer versions are whole numbers, and every sum before the fade is exact.

Every function changes images, uint8 (n, H, W, C), in place, by a factor in [0, 1] for each; 1 changes nothing.
"""

from __future__ import annotations

from unissl.augment.arrays import Array, Floats, cast, empty, per_image, tensor
from unissl.augment.pixels import pack, unpack

LUMA = (19595, 38470, 7471)
"""Shares of red, green and blue in grey, in 1/65536."""
REPEATED = 0x010101
"""Times a level gives the grey pixel of that level."""


def brightness(images: Array, factor: Floats) -> None:
    """Fade from black."""
    levels = images.reshape(len(images), -1)
    image = cast(levels, "float32")
    tensor(image).mul_(tensor(per_image(factor, "float32", images)))
    levels[:] = image


def color(images: Array, factor: Floats) -> None:
    """Fade from grey; a grey image stays as it is."""
    if images.shape[3] == 3:
        grey = empty(images.shape, "uint8", images)
        unpack(_luma(images) * REPEATED, grey)
        _fade(cast(grey.reshape(len(images), -1), "float32"), images.reshape(len(images), -1), factor)


def contrast(images: Array, factor: Floats) -> None:
    """Fade from the flat image of the mean grey level."""
    grey = _luma(images).reshape(len(images), -1)
    pixels = grey.shape[1]
    mean = (2 * grey.sum(1)[:, None] + pixels) // (2 * pixels)  # nearest, halves up
    _fade(cast(mean, "float32"), images.reshape(len(images), -1), factor)


def sharpness(images: Array, factor: Floats) -> None:
    """Fade from the smoothed image; the border, which Pillow does not smooth, stays."""
    n, _, width, step = images.shape
    row = width * step
    levels = images.reshape(n, -1)
    # On flattened images the neighbours are a step and a row apart. Sums that run over a side are wrong, and undone.
    image = cast(levels, "int16")
    across = image[:, : -2 * step] + image[:, step:-step]
    across += image[:, 2 * step :]
    total = across[:, : -2 * row] + across[:, row:-row]
    total += across[:, 2 * row :]
    inner = slice(row + step, -row - step)
    image *= 4
    total += image[:, inner]
    total += 6
    total //= 13  # weights 1 around 5, rounded; no quotient lies on a half
    sides = slice(None, None, width - 1)
    kept = images[:, :, sides] + 0
    _fade(cast(total, "float32"), levels[:, inner], factor)
    images[:, :, sides] = kept


def _luma(images: Array) -> Array:
    """Grey level of each pixel, int32 (n, H, W), rounded as Pillow's conversion to mode L."""
    if images.shape[3] == 1:
        return cast(images[..., 0], "int32")
    pixels = pack(images)
    red, green, blue = pixels & 255, pixels >> 8, pixels >> 16
    green &= 255
    blue &= 255
    for channel, share in zip((red, green, blue), LUMA, strict=True):
        channel *= share
    red += green
    red += blue
    red += 32768
    red >>= 16
    return red


def _fade(poor: Array, levels: Array, factor: Floats) -> None:
    """From ``poor``, float32 (n, L) or (n, 1), to levels (n, L), in place. With a number per row torch is faster."""
    image = cast(levels, "float32")
    share, start = tensor(per_image(factor, "float32", levels)), tensor(poor)
    tensor(image).sub_(start).mul_(share).add_(start)
    levels[:] = image
