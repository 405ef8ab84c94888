"""Squares of images: the middle, a zoom into it, the whole with a margin, several side by side."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from unissl.data.images.decode import decode
from unissl.data.images.resize import CENTER_CROP, GREY, CenterCrop, Letterbox, MultiCrop


def wide() -> Image.Image:
    """16 x 8 pixels, each its own colour."""
    return Image.fromarray(np.arange(16 * 8 * 3, dtype=np.uint8).reshape(8, 16, 3))


def encoded(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_middle_and_zoom_are_the_pixels_themselves_where_nothing_is_scaled() -> None:
    pixels = np.asarray(wide())
    np.testing.assert_array_equal(np.asarray(CENTER_CROP(wide(), 8)), pixels[:, 4:12])
    np.testing.assert_array_equal(np.asarray(CenterCrop(middle=0.5)(wide(), 4)), pixels[2:6, 6:10])


@pytest.mark.parametrize("turned", [False, True])
def test_the_whole_image_has_a_grey_margin(turned: bool) -> None:
    image = wide().transpose(Image.Transpose.ROTATE_90) if turned else wide()
    seen = np.asarray(Letterbox()(image, 16))
    seen = np.rot90(seen, -1) if turned else seen
    np.testing.assert_array_equal(seen[4:12], np.asarray(wide()))
    assert (seen[:4] == GREY).all() and (seen[12:] == GREY).all()


def test_a_line_of_pixels_is_still_seen() -> None:
    line = Image.new("RGB", (500, 1), (200, 0, 0))
    seen = np.asarray(Letterbox()(line, 16))
    assert (seen == (200, 0, 0)).all(-1).sum() == 16
    assert np.asarray(CenterCrop(middle=0.1)(line, 8)).shape == (8, 8, 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_one_decoding_gives_several_squares(channels: int) -> None:
    fits = (CenterCrop(middle=0.6), Letterbox())
    strip = decode(encoded(wide()), 8, channels, MultiCrop(fits))
    assert strip.shape == (8, 16, channels)
    for place, fit in enumerate(fits):
        alone = decode(encoded(wide()), 8, channels, fit)
        np.testing.assert_array_equal(strip[:, 8 * place : 8 * place + 8], alone)
