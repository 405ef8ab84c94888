"""Every kind of image that Pillow opens becomes the pixels one would expect."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unissl.data.images.decode import DecodedImage, Unreadable, decode, decode_stream, image_size, read_images
from unissl.data.images.resize import scale_arrays


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that announces a size and holds no pixels."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0")
    chunks = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (body, data, b"IEND")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def only_reason(source: bytes) -> str:
    (_, result), *rest = decode_stream([(0, source)], 4, 3)
    assert not rest and isinstance(result, Unreadable)
    return str(result)


RAMP = (np.arange(16) * 16).reshape(4, 4).astype(np.uint8)


def test_grey_image_of_the_right_size_is_untouched() -> None:
    grey = encoded(Image.fromarray(RAMP))
    assert np.array_equal(decode(grey, 4, 1), RAMP[..., None])
    assert np.array_equal(decode(grey, 4, 3), np.stack([RAMP] * 3, axis=-1))


def test_colour_to_one_channel_is_luminance() -> None:
    red = encoded(Image.new("RGB", (4, 4), (255, 0, 0)))
    assert (decode(red, 4, 1) == 76).all()  # 0.299 * 255


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_grey_is_scaled_not_cut_off(kind: str) -> None:
    values = RAMP.astype(np.uint16) * 257
    assert np.array_equal(decode(encoded(Image.fromarray(values), kind), 4, 1)[..., 0], RAMP)


def test_sixteen_bit_is_rounded_to_the_nearest() -> None:
    values = np.array([[0, 128], [129, 65535]], dtype=np.uint16)  # 128 / 257 < 0.5 < 129 / 257
    assert decode(encoded(Image.fromarray(values)), 2, 1).ravel().tolist() == [0, 0, 1, 255]


def test_sixteen_bits_in_32_bit_integers() -> None:
    square = Image.fromarray(np.array([[0, 25700], [51400, 65535]], dtype=np.int32))
    assert decode(encoded(square, "TIFF"), 2, 1).ravel().tolist() == [0, 100, 200, 255]


def test_conversion_in_bands_equals_one_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.RandomState(0).randint(0, 256, (9, 7, 4), dtype=np.uint8)
    floats = Image.fromarray(np.random.RandomState(0).rand(9, 7).astype(np.float32))
    sources = [encoded(Image.fromarray(noise)), encoded(floats, "TIFF")]
    whole = [decode(source, 7, 3) for source in sources]
    monkeypatch.setattr("unissl.data.images.decode.BAND_PIXELS", 14)
    assert all((decode(source, 7, 3) == before).all() for source, before in zip(sources, whole, strict=True))


@pytest.mark.parametrize(("factor", "expected"), [(1 / 255, RAMP), (1.0, RAMP)])
def test_float_images_are_fractions_or_bytes(factor: float, expected: Any) -> None:
    source = encoded(Image.fromarray(RAMP.astype(np.float32) * np.float32(factor)), "TIFF")
    assert np.array_equal(decode(source, 4, 1)[..., 0], expected)


def test_cmyk() -> None:
    cyan = encoded(Image.new("CMYK", (4, 4), (255, 0, 0, 0)), "TIFF")
    assert (decode(cyan, 4, 3) == [0, 255, 255]).all()
    assert decode(cyan, 4, 1).shape == (4, 4, 1)


def test_one_bit() -> None:
    image = Image.fromarray(RAMP >= 128)
    assert image.mode == "1"
    assert np.array_equal(decode(encoded(image), 4, 1)[..., 0], np.where(RAMP >= 128, 255, 0))


def test_palette_and_its_transparent_colour() -> None:
    image = Image.new("P", (2, 2))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putdata([0, 1, 1, 0])
    assert decode(encoded(image), 2, 3)[0].tolist() == [[10, 20, 30], [200, 100, 50]]
    assert decode(encoded(image, transparency=1), 2, 3)[0].tolist() == [[10, 20, 30], [255, 255, 255]]


def test_transparency_is_shown_on_white() -> None:
    pixels = np.zeros((2, 2, 4), dtype=np.uint8)
    pixels[..., 3] = [[0, 255], [51, 255]]
    pixels[1, 1, :3] = (9, 8, 7)
    shown = decode(encoded(Image.fromarray(pixels)), 2, 3)
    assert shown.tolist() == [[[255] * 3, [0] * 3], [[204] * 3, [9, 8, 7]]]  # 51 / 255 is a fifth of black
    grey = Image.fromarray(pixels).convert("LA")
    assert decode(encoded(grey), 2, 1)[..., 0].tolist() == [[255, 0], [204, 8]]


def test_transparent_colour_of_an_rgb_png() -> None:
    image = Image.new("RGB", (2, 2), (1, 2, 3))
    assert (decode(encoded(image, transparency=(1, 2, 3)), 2, 3) == 255).all()


@pytest.mark.parametrize(("orientation", "turn"), [(1, 0), (3, 2), (6, -1), (8, 1)])
def test_exif_orientation_is_applied(orientation: int, turn: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    source = encoded(Image.fromarray(RAMP), exif=exif)
    assert np.array_equal(decode(source, 4, 1)[..., 0], np.rot90(RAMP, turn))


def test_broken_exif_does_not_cost_the_image() -> None:
    source = encoded(Image.fromarray(RAMP), exif=b"Exif\0\0II*\0\xff\xff\xff\x7f")
    assert np.array_equal(decode(source, 4, 1)[..., 0], RAMP)


def test_first_frame_of_an_animation() -> None:
    frames = [Image.new("L", (4, 4), value) for value in (40, 200)]
    source = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert (decode(source, 4, 1) == 40).all()


@pytest.mark.parametrize("upright", [False, True])
def test_centre_square_of_an_oblong(upright: bool) -> None:
    oblong = np.repeat([10, 20, 30], 4)[None].repeat(4, axis=0).astype(np.uint8)  # 4 high, 12 wide
    source = encoded(Image.fromarray(oblong.T if upright else oblong))
    assert (decode(source, 4, 1) == 20).all()
    whole = np.asarray(Image.fromarray(oblong).resize((6, 2), Image.Resampling.BILINEAR))
    half = decode(source, 2, 1)[..., 0]
    assert np.array_equal(half.T if upright else half, whole[:, 2:4])


def test_scaling_down_averages_and_up_interpolates() -> None:
    halves = encoded(Image.fromarray(np.repeat([[0, 200]], 2, axis=0).astype(np.uint8)))
    assert decode(halves, 1, 1).item() == 100
    assert decode(halves, 4, 1)[0, :, 0].tolist() == [0, 50, 150, 200]


def test_large_jpeg_decoded_coarsely_looks_the_same() -> None:
    slope = np.linspace(0, 255, 512).astype(np.uint8)[None].repeat(512, axis=0)
    full = Image.fromarray(slope)
    expected = np.asarray(full.resize((16, 16), Image.Resampling.BILINEAR)).astype(int)
    found = decode(encoded(full, "JPEG", quality=95), 16, 1)[..., 0].astype(int)
    assert abs(found - expected).max() <= 1


def test_reasons_for_unreadable_images() -> None:
    noise = Image.fromarray(np.random.RandomState(0).randint(0, 256, (64, 64, 3), dtype=np.uint8))
    jpeg, png = encoded(noise, "JPEG"), encoded(noise)
    assert only_reason(b"") == "the file is empty"
    assert only_reason(b"hello") == "not an image that Pillow can read"
    assert only_reason(jpeg[: len(jpeg) // 2]).startswith("damaged image")
    assert only_reason(png[: len(png) // 2]).startswith("damaged image")
    assert "EPS" in only_reason(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")


def test_more_than_100_megapixels_are_refused_by_the_header() -> None:
    assert only_reason(png_header(10_001, 10_000)) == "more than 100 megapixels (10001 x 10000)"
    assert only_reason(png_header(100_000, 100_000)) == "more than 100 megapixels"  # stopped by Pillow's own guard
    assert "megapixels" not in only_reason(png_header(10_000, 10_000))
    assert image_size(png_header(10_000, 10_000)) == (10_000, 10_000)


def test_stream_keeps_order_over_many_chunks() -> None:
    rows = [(row, encoded(Image.new("L", (2, 2), row % 256))) for row in range(700)]
    result = list(decode_stream(rows, 2, 1))
    assert [row for row, _ in result] == list(range(700))
    assert all(isinstance(p, DecodedImage) and (p.pixels == row % 256).all() for row, p in result)


def test_read_images_reports_what_it_left_out(tmp_path: Path) -> None:
    good, bad, missing = tmp_path / "good.png", tmp_path / "bad.png", tmp_path / "missing.png"
    Image.fromarray(RAMP).save(good)
    bad.write_bytes(b"no image")
    images, kept, skipped = read_images([bad, good, missing], size=4, channels=3)
    assert images.shape == (1, 4, 4, 3) and images.dtype == np.uint8
    assert np.array_equal(images[0, ..., 0], RAMP)
    assert kept == [str(good)]
    assert skipped == [
        (str(bad), "not an image that Pillow can read"),
        (str(missing), "the file does not exist"),
    ]


def test_read_images_of_a_folder_name(tmp_path: Path) -> None:
    images, kept, skipped = read_images([tmp_path], size=4, channels=1)
    assert images.shape == (0, 4, 4, 1) and kept == []
    assert skipped == [(str(tmp_path), "Is a directory")]


def test_arrays_are_scaled_like_files() -> None:
    colour = np.random.RandomState(1).randint(0, 256, (3, 6, 6, 3), dtype=np.uint8)
    scaled = scale_arrays(colour, 4)
    assert np.array_equal(scaled[1], decode(encoded(Image.fromarray(colour[1])), 4, 3))
    grey = scale_arrays(colour[..., :1], 4)
    assert np.array_equal(grey[2], decode(encoded(Image.fromarray(colour[2, ..., 0])), 4, 1))
    assert scale_arrays(colour, None) is colour
