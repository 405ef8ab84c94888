"""Each oddity is seen where it is and nowhere else, and told with the files it is about."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unissl.data import DataConfig, load
from unissl.data.images import decode
from unissl.data.images.issues import MESSAGES, NONE, ImageIssue, describe_issues, merge_issues
from unissl.utils.file_names import BEYOND_ASCII, LONG_NAMED, NO_UTF8, UNPRINTABLE, name_issues

PIXELS = np.random.RandomState(0).randint(0, 256, (40, 50, 3), dtype=np.uint8)
PHOTO = Image.fromarray(PIXELS)
DEEP_GREY = Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(PHOTO, "JPEG", exif=exif)


def frames(kind: str, **options: Any) -> bytes:
    return encoded(PHOTO, kind, save_all=True, append_images=[PHOTO.rotate(90)], **options)


def with_alpha(*values: int) -> Image.Image:
    """Opaque but for the first pixels."""
    alpha = np.full(PIXELS.shape[:2], 255, dtype=np.uint8)
    alpha[0, : len(values)] = values
    return Image.merge("RGBA", [*PHOTO.split(), Image.fromarray(alpha)])


def sixteen_bits_in_colour() -> bytes:
    """PNG of 3 x 16 bits, which Pillow reads as 3 x 8 and does not write."""
    height, width = PIXELS.shape[:2]
    lines = b"".join(b"\0" + (row.astype(">u2") * 257).tobytes() for row in PIXELS)
    chunks = [
        b"IHDR" + struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0),
        b"IDAT" + zlib.compress(lines),
        b"IEND",
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks
    )


def sixteen_bits_per_pixel() -> bytes:
    """A BMP of 5 + 6 + 5 bits, which are not 16 per channel."""
    width, height = 16, 16
    pixels = np.random.RandomState(1).randint(0, 65536, width * height).astype("<u2").tobytes()
    info = struct.pack("<IiiHHIIiiII3I", 40, width, height, 1, 16, 3, len(pixels), 0, 0, 0, 0, 0xF800, 0x7E0, 0x1F)
    start = 14 + len(info)
    return struct.pack("<2sIHHI", b"BM", start + len(pixels), 0, 0, start) + info + pixels


ORDINARY = {
    "photo.jpg": encoded(PHOTO, "JPEG"),
    "photo.JPEG": encoded(PHOTO, "JPEG"),
    "photo.jfif": encoded(PHOTO, "JPEG"),
    "grey.png": encoded(PHOTO.convert("L")),
    "bits.png": encoded(PHOTO.convert("1")),
    "palette.gif": encoded(PHOTO.convert("P"), "GIF"),
    "opaque.png": encoded(with_alpha()),
    "still.webp": encoded(PHOTO, "WEBP"),
    "page.tif": encoded(PHOTO, "TIFF"),
    "upright.jpg": turned(1),
    "upright.tif": encoded(PHOTO, "TIFF", tiffinfo={0x0112: 1}),
    "no such turn.jpg": turned(9),
    "phone.jpg": frames("MPO"),
    "broken notes.png": encoded(PHOTO, exif=b"Exif\0\0II*\0\xff\xff\xff\x7f"),
    "565.bmp": sixteen_bits_per_pixel(),
    "wide.png": encoded(PHOTO.resize((160, 40))),
}
ODD = {
    "black.png": (encoded(Image.new("RGB", (40, 40))), ImageIssue.BLANK),
    "white.jpg": (encoded(Image.new("L", (40, 40), 255), "JPEG"), ImageIssue.BLANK),
    "pixel.png": (encoded(PHOTO.resize((1, 1))), ImageIssue.TINY | ImageIssue.BLANK),
    "small.png": (encoded(PHOTO.resize((15, 40))), ImageIssue.TINY),
    "thin.png": (encoded(PHOTO.resize((165, 41))), ImageIssue.LONG),
    "moving.gif": (frames("GIF"), ImageIssue.FRAMES),
    "moving.webp": (frames("WEBP"), ImageIssue.FRAMES),
    "moving.png": (frames("PNG"), ImageIssue.FRAMES),
    "pages.tiff": (frames("TIFF"), ImageIssue.FRAMES),
    "clear.png": (encoded(with_alpha(0, 128)), ImageIssue.TRANSPARENT),
    "nearly.png": (encoded(with_alpha(254)), ImageIssue.TRANSPARENT),
    "clear grey.png": (encoded(with_alpha(0).convert("LA")), ImageIssue.TRANSPARENT),
    "clear palette.png": (
        encoded(PHOTO.convert("P"), transparency=bytes(256)),
        ImageIssue.TRANSPARENT | ImageIssue.BLANK,
    ),
    "print.jpg": (encoded(PHOTO.convert("CMYK"), "JPEG"), ImageIssue.PRINT),
    "deep.png": (encoded(DEEP_GREY), ImageIssue.DEEP),
    "deep.tif": (encoded(DEEP_GREY, "TIFF"), ImageIssue.DEEP),
    "deep colour.png": (sixteen_bits_in_colour(), ImageIssue.DEEP),
    "float.tif": (encoded(Image.fromarray(PIXELS[..., 0] / np.float32(255)), "TIFF"), ImageIssue.DEEP),
    **{f"turned{by}.jpg": (turned(by), ImageIssue.TURNED) for by in range(2, 9)},
    "turned.tif": (encoded(PHOTO, "TIFF", tiffinfo={0x0112: 6}), ImageIssue.TURNED),
    "large.jpg": (encoded(PHOTO.resize((5001, 3200)), "JPEG"), ImageIssue.LARGE),
    "a jpeg.png": (encoded(PHOTO, "JPEG"), ImageIssue.MISNAMED),
    "no suffix": (encoded(PHOTO), ImageIssue.MISNAMED),
    "from the web.jpg?w=4": (encoded(PHOTO, "JPEG"), ImageIssue.MISNAMED),
    "all at once.png": (
        encoded(Image.new("CMYK", (1, 9)), "TIFF"),
        ImageIssue.BLANK | ImageIssue.TINY | ImageIssue.LONG | ImageIssue.PRINT | ImageIssue.MISNAMED,
    ),
}  # fmt: skip


def oddities(path: Path, content: bytes, size: int = 32) -> ImageIssue:
    path.write_bytes(content)
    by_path, by_content = (decode.read_image(source, size, 3) for source in (str(path), content))
    assert by_content.issues == by_path.issues & ~ImageIssue.MISNAMED  # which has no name
    assert np.array_equal(by_path.pixels, by_content.pixels)
    return by_path.issues


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_image_is_not_odd(tmp_path: Path, name: str) -> None:
    assert oddities(tmp_path / name, ORDINARY[name]) == NONE


@pytest.mark.parametrize("name", ODD)
def test_an_odd_image_is_known_as_what_it_is(tmp_path: Path, name: str) -> None:
    content, expected = ODD[name]
    assert oddities(tmp_path / name, content) == expected


def test_every_kind_was_tried_and_can_be_told() -> None:
    assert (
        set(MESSAGES) == set(ImageIssue) and len(set(MESSAGES.values())) == len(ImageIssue) <= 14
    )  # bits of a mark beside the kind
    assert {kind for _, found in ODD.values() for kind in ImageIssue if kind in found} == set(ImageIssue)


def test_an_image_that_is_not_blown_up_is_not_tiny(tmp_path: Path) -> None:
    content = encoded(PHOTO.resize((8, 8)))
    assert oddities(tmp_path / "digit.png", content, size=8) == NONE
    assert oddities(tmp_path / "digit.png", content, size=9) == ImageIssue.TINY


def test_a_broken_second_frame_costs_nothing_but_a_remark(tmp_path: Path) -> None:
    content = frames("GIF")
    cut = content[: content.rindex(b"\x2c") + 4]  # within the head of the second frame
    whole = decode.read_image(encoded(PHOTO, "GIF"), 32, 3).pixels
    found = decode.read_image(cut, 32, 3)
    assert np.array_equal(found.pixels, whole) and found.issues == ImageIssue.FRAMES


def test_images_are_told_of_by_kind() -> None:
    marks = np.array([0, ImageIssue.TURNED, ImageIssue.TINY | ImageIssue.TURNED, 0], dtype=np.uint16)
    told = describe_issues(marks, "abcd".__getitem__)
    assert list(told.items()) == [(MESSAGES[ImageIssue.TINY], ("c",)), (MESSAGES[ImageIssue.TURNED], ("b", "c"))]
    assert describe_issues(np.zeros(3, np.uint16), str) == {}


def test_names_are_told_of_by_kind() -> None:
    long = "l" * 101 + ".png"
    names = ["plain name.png", "è/plain.png", "a/é.png", long, "two\nlines.png", os.fsdecode(b"caf\xe9.png")]
    assert name_issues(names) == {
        NO_UTF8: ("caf\\xe9.png",),
        UNPRINTABLE: ("two\nlines.png",),
        LONG_NAMED: (long,),
        BEYOND_ASCII: ("a/é.png",),
    }


def test_remarks_of_two_tables_are_joined_in_order() -> None:
    assert merge_issues([{"x": ("a",)}, {"y": ("b",), "x": ("c", "d")}]) == {"x": ("a", "c", "d"), "y": ("b",)}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for place in ("cat", "dog", "unlabeled"):
        (tmp_path / "photos" / place).mkdir(parents=True)
        for number in range(3):
            pixels = np.random.RandomState(number).randint(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / place / f"{number}.png")
    return tmp_path / "photos"


def test_a_folder_tells_of_its_images_also_from_the_cache(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (photos / "cat" / "moving.gif").write_bytes(frames("GIF"))
    (photos / "unlabeled" / "a.png").write_text("unreadable, so that rows and files do not go together")
    (photos / "unlabeled" / "b é.jpg").write_bytes(turned(6))
    expected = {
        MESSAGES[ImageIssue.FRAMES]: ("cat/moving.gif",),
        MESSAGES[ImageIssue.TURNED]: ("unlabeled/b é.jpg",),
        BEYOND_ASCII: ("unlabeled/b é.jpg",),
    }
    config = DataConfig(name="folder", root=str(photos), image_size=16)
    assert load(config).train.issues == expected
    monkeypatch.delattr("unissl.data.store.decode_to_cache.decode_stream")
    assert load(config).train.issues == expected


def test_held_out_images_are_told_of_once(photos: Path) -> None:
    for number in range(3):
        (photos / "cat" / f"{number}.jpg").write_bytes(turned(6))
    data = load(DataConfig(name="folder", root=str(photos), image_size=16, test_holdout=4))
    assert data.test is not None
    told = merge_issues([data.train.issues, data.test.issues])
    assert sorted(told[MESSAGES[ImageIssue.TURNED]]) == [f"cat/{number}.jpg" for number in range(3)]
