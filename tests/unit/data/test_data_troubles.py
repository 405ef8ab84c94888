"""One folder with every kind of trouble: each image is seen as it should be, or listed with the reason."""

from __future__ import annotations

import io
import os
import struct
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from unissl.data import DataConfig, load
from unissl.data.folder.index import find_images
from unissl.data.images import decode
from unissl.data.images.decode import IMAGE_SUFFIXES
from unissl.errors import UserError
from unissl.types import ImageTable

RED = (200, 40, 30)
WHITE = (255, 255, 255)
Colour = tuple[int, int, int]
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def plain(mode: str = "RGB", colour: Any = RED, size: tuple[int, int] = (20, 20)) -> Image.Image:
    return Image.new(mode, size, colour)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png(width: int, height: int, depth: int, kind: int, pixels: bytes) -> bytes:
    """A PNG put together by hand, of depths that Pillow does not write or with pixels that are not there."""
    chunks = [
        b"IHDR" + struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0),
        b"IDAT" + zlib.compress(pixels),
        b"IEND",
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks
    )


def sixteen_bit_png(*values: int) -> bytes:
    row = b"\0" + struct.pack(f">{len(values)}H", *values) * 20
    return png(20, 20, 16, {1: 0, 2: 4, 3: 2, 4: 6}[len(values)], row * 20)


def sixteen_bit_rgb_tiff(*values: int) -> bytes:
    """Little-endian, one strip, 20 x 20 pixels of 3 x 16 bits."""
    pixels = struct.pack("<3H", *values) * 400
    tags = [
        (256, 3, 1, 20), (257, 3, 1, 20), (258, 3, 3, 8), (259, 3, 1, 1), (262, 3, 1, 2), (273, 4, 1, 14),
        (277, 3, 1, 3), (278, 3, 1, 20), (279, 4, 1, len(pixels)),
    ]  # fmt: skip
    directory = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return (
        struct.pack("<2sHI3H", b"II", 42, 14 + len(pixels), 16, 16, 16)
        + pixels
        + struct.pack("<H", 9)
        + directory
        + bytes(4)
    )


def frames(kind: str, **options: Any) -> bytes:
    return encoded(plain(), kind, save_all=True, append_images=[plain(colour="blue")], **options)


def turned() -> bytes:
    """White above and black below once it is turned as its EXIF note says."""
    upright = plain(colour="black", size=(8, 8))
    upright.paste("white", (0, 0, 8, 4))
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(upright.transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif)


def swapped_profile() -> bytes:
    """A profile by which the first channel is green and the second red, so that a wrong reading shows."""
    profile = bytearray(SRGB)
    count = struct.unpack(">I", profile[128:132])[0]
    entries = {bytes(profile[132 + 12 * i : 136 + 12 * i]): 132 + 12 * i for i in range(count)}
    red, green = entries[b"rXYZ"], entries[b"gXYZ"]
    profile[red : red + 4], profile[green : green + 4] = b"gXYZ", b"rXYZ"
    start, length = struct.unpack(">II", profile[entries[b"desc"] + 4 : entries[b"desc"] + 12])
    text = profile[start : start + length]
    profile[start : start + length] = text.replace("sRGB".encode("utf-16-be"), "mine".encode("utf-16-be"))
    return bytes(profile)


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def noise_jpeg() -> bytes:
    pixels = np.random.RandomState(0).randint(0, 256, (64, 64, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels), "JPEG")


SEEN: dict[str, tuple[bytes, Colour, int]] = {
    "tiny.png": (encoded(plain(size=(1, 1)), "PNG"), RED, 0),
    "wide.png": (encoded(plain(size=(5000, 1)), "PNG"), RED, 0),
    "tall.png": (encoded(plain(size=(1, 5000)), "PNG"), RED, 0),
    "animated.gif": (frames("GIF"), RED, 0),
    "animated.webp": (frames("WEBP", lossless=True), RED, 0),
    "animated.png": (frames("PNG"), RED, 0),
    "pages.tiff": (frames("TIFF"), RED, 0),
    "stereo.mpo": (frames("MPO", quality=100), RED, 3),
    "cmyk.jpg": (encoded(plain("CMYK", (55, 215, 225, 0)), "JPEG", quality=100), RED, 2),
    "cmyk.tif": (encoded(plain("CMYK", (55, 215, 225, 0)), "TIFF"), RED, 0),
    "grey.png": (encoded(plain("L", 77), "PNG"), (77, 77, 77), 0),
    "grey16.png": (sixteen_bit_png(77 * 257), (77, 77, 77), 0),
    "grey16alpha.png": (sixteen_bit_png(77 * 257, 65535), (77, 77, 77), 0),
    "rgb16.png": (sixteen_bit_png(*(c * 257 for c in RED)), RED, 0),
    "rgba16.png": (sixteen_bit_png(*(c * 257 for c in RED), 65535), RED, 0),
    "rgb16.tif": (sixteen_bit_rgb_tiff(*(c * 257 for c in RED)), RED, 0),
    "float.tif": (encoded(Image.fromarray(np.full((9, 9), 0.2, np.float32)), "TIFF"), (51, 51, 51), 0),
    "one bit.png": (encoded(plain("1", 1), "PNG"), WHITE, 0),
    "palette.png": (encoded(plain().convert("P", palette=Image.Palette.ADAPTIVE), "PNG"), RED, 0),
    "clear palette.png": (encoded(plain("P", 0), "PNG", transparency=0), WHITE, 0),
    "clear.png": (encoded(plain("RGBA", (*RED, 0)), "PNG"), WHITE, 0),
    "grey clear.png": (encoded(plain("LA", (0, 51)), "PNG"), (204, 204, 204), 0),
    "UPPER.PNG": (encoded(plain(), "PNG"), RED, 0),
    "no suffix": (encoded(plain(), "PNG"), RED, 0),
    "from the web.jpg?w=400": (encoded(plain(), "PNG"), RED, 0),
    "wrong suffix.jpg": (encoded(plain(), "PNG"), RED, 0),
    "éñ 猫 🐈.png": (encoded(plain(), "PNG"), RED, 0),
    "l" * 251 + ".png": (encoded(plain(), "PNG"), RED, 0),
    "two\nlines.png": (encoded(plain(), "PNG"), RED, 0),
    "plain\\slash.png": (encoded(plain(), "PNG"), RED, 0),
    "deep/er/and/deep.er/a.png": (encoded(plain(), "PNG"), RED, 0),
    "folder.jpg/inside.png": (encoded(plain(), "PNG"), RED, 0),
    "srgb.png": (encoded(plain(), "PNG", icc_profile=SRGB), RED, 0),
    "profile.png": (encoded(plain(), "PNG", icc_profile=swapped_profile()), (40, 200, 30), 2),
    "broken profile.png": (encoded(plain(), "PNG", icc_profile=b"nonsense"), RED, 0),
}  # fmt: skip

REASONS: dict[str, tuple[bytes, str]] = {
    "text.jpg": (b"not an image", "not an image that Pillow can read"),
    "page.jpg": (b"<!DOCTYPE html><html></html>", "not an image that Pillow can read"),
    "empty.png": (b"", "the file is empty"),
    "cut.png": (cut(encoded(plain(), "PNG")), "damaged image: "),
    "cut.jpg": (cut(noise_jpeg()), "damaged image: image file is truncated"),
    "broken.png": (encoded(plain(), "PNG").replace(b"IDAT", b"IDXT"), "not an image that Pillow can read"),
    "no palette.png": (png(20, 20, 8, 3, bytes(21 * 20)), "damaged image: its palette is missing"),
    "huge.png": (png(12_000, 12_000, 8, 2, bytes(99)), "more than 100 megapixels (12000 x 12000)"),
    "bomb.png": (png(100_000, 100_000, 8, 2, bytes(99)), "more than 100 megapixels"),
    "phone.heic": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC, which Pillow cannot read; convert it to JPEG"),
    "drawing.svg": (b'<?xml version="1.0"?>\n<svg width="9"/>', "an SVG drawing, which has no pixels"),
    "camera.NEF": (encoded(plain(), "TIFF"), "a raw file of a camera; convert it to JPEG"),
    "program.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "EPS is a program"),
}  # fmt: skip


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for name, colour in (("cat", "green"), ("dog", "blue")):
        (root / name).mkdir(parents=True)
        plain(colour=colour).save(root / name / "a.png")
    (root / "unlabeled").mkdir()
    return root


def load_photos(root: Path, **settings: Any) -> ImageTable:
    return load(DataConfig(name="folder", root=str(root), image_size=8, **settings)).train


def row_of(table: ImageTable, file: str) -> Any:
    assert table.files is not None
    return table.images[table.files.index(file)]


def test_each_kind_is_seen_or_listed(photos: Path) -> None:
    pool = photos / "unlabeled"
    contents = {name: content for name, (content, *_) in SEEN.items()} | {n: c for n, (c, _) in REASONS.items()}
    for name, content in contents.items():
        (pool / name).parent.mkdir(parents=True, exist_ok=True)
        (pool / name).write_bytes(content)
    (pool / "turned.png").write_bytes(turned())
    (pool / "gone.png").symlink_to(pool / "nowhere")
    (pool / "ring.png").symlink_to(pool / "ring.png")
    (pool / "circle").symlink_to(photos)
    (pool / "empty folder.jpg").mkdir()
    os.mkfifo(pool / "pipe.png")
    links = {
        "gone.png": "the file does not exist",
        "ring.png": "Too many levels of symbolic links",
        "circle": "a link to a folder that is read elsewhere or leads in circles",
        "empty folder.jpg": "a folder, not an image",
        "pipe.png": "a pipe or device, not a file",
    }
    table = load_photos(photos)
    for name, (_, colour, tolerance) in SEEN.items():
        assert np.abs(row_of(table, f"unlabeled/{name}").astype(int) - colour).max() <= tolerance, name
    upright = row_of(table, "unlabeled/turned.png")
    assert (upright[:4] == 255).all() and (upright[4:] == 0).all()
    skipped = dict(table.skipped)
    expected = {
        f"unlabeled/{name}": reason for name, reason in (links | {n: r for n, (_, r) in REASONS.items()}).items()
    }
    assert skipped.keys() == expected.keys()
    assert [name for name, reason in expected.items() if not skipped[name].startswith(reason)] == []
    assert len(table) == 2 + len(SEEN) + 1


@pytest.mark.parametrize("name", REASONS)
def test_a_labelled_one_stops_with_a_sentence(photos: Path, name: str) -> None:
    (photos / "cat" / name).write_bytes(REASONS[name][0])
    with pytest.raises(UserError) as error:
        load_photos(photos)
    assert f"cat/{name} cannot be read ({REASONS[name][1]}" in str(error.value)
    assert "replace it or remove it" in str(error.value) and "\n" not in str(error.value)


def test_a_name_with_a_newline_stays_within_one_sentence(photos: Path) -> None:
    (photos / "cat" / "two\nlines.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"cat/two\\nlines\.png' cannot be read \(the file is empty\)"):
        load_photos(photos)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_that_is_no_utf8_is_read_and_can_be_written_down(photos: Path) -> None:
    plain().save(os.fsdecode(os.fsencode(photos / "unlabeled") + b"/\xff.png"))
    (photos / "unlabeled" / os.fsdecode(b"\xfe.png")).write_bytes(b"")
    table = load_photos(photos)
    assert (row_of(table, r"unlabeled/\xff.png") == RED).all()
    assert table.skipped == ((r"unlabeled/\xfe.png", "the file is empty"),)


def test_linked_folders_are_followed_once_if_asked_for(photos: Path) -> None:
    elsewhere = photos.parent / "elsewhere"
    (elsewhere / "birds").mkdir(parents=True)
    plain().save(elsewhere / "birds" / "z.png")
    (elsewhere / "birds" / "back").symlink_to(photos)
    (elsewhere / "birds" / "self").symlink_to(elsewhere / "birds")
    (photos / "bird").symlink_to(elsewhere / "birds")
    (photos / "cat" / "dogs").symlink_to(photos / "dog")
    (photos / "unlabeled" / "again").symlink_to(elsewhere / "birds")
    table = load(DataConfig(name="folder", root=str(photos), follow_links=True)).train
    assert table.files == ("bird/z.png", "cat/a.png", "dog/a.png") and table.class_names == ("bird", "cat", "dog")
    assert [name for name, _ in table.skipped] == ["bird/back", "bird/self", "cat/dogs", "unlabeled/again"]


def test_a_class_folder_that_is_a_link_in_circles_is_no_class(photos: Path) -> None:
    (photos / "bird").symlink_to(photos.parent)
    table = load_photos(photos)
    assert table.class_names == ("cat", "dog") and [name for name, _ in table.skipped] == ["bird"]


def test_what_may_not_be_read_in_the_pool_is_listed(photos: Path, forbid: Callable[..., None]) -> None:
    (photos / "unlabeled" / "secret").mkdir()
    plain().save(photos / "unlabeled" / "secret" / "a.png")
    plain().save(photos / "unlabeled" / "mine.png")
    forbid("secret", "mine.png")
    assert load_photos(photos).skipped == (
        ("unlabeled/mine.png", "Permission denied"),
        ("unlabeled/secret", "folder that may not be read: Permission denied"),
    )


def test_labelled_images_that_may_not_be_read_stop(photos: Path, forbid: Callable[..., None]) -> None:
    plain().save(photos / "cat" / "mine.png")
    forbid("mine.png")
    with pytest.raises(UserError, match=r"cat/mine\.png cannot be read \(Permission denied\)"):
        load_photos(photos)
    (photos / "cat" / "secret").mkdir()
    forbid("secret")
    with pytest.raises(UserError, match=r"cat/secret is a folder that may not be read.*change its permissions"):
        load_photos(photos)


def test_what_lies_beside_labelled_and_unlabelled_is_counted(tmp_path: Path) -> None:
    for name in ("labeled/cat/a", "labeled/dog/a", "labeled/loose", "unlabeled/b", "old/c", "old/deep/d"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        plain().save(tmp_path / f"{name}.png")
    table = load_photos(tmp_path)
    assert table.files == ("labeled/cat/a.png", "labeled/dog/a.png", "unlabeled/b.png")
    assert table.skipped == (
        ("labeled/loose.png", "1 image(s) in no class folder and not in the pool"),
        ("old", "2 image(s) in no class folder and not in the pool"),
    )


def test_loose_test_images_are_listed(photos: Path) -> None:
    test = photos.parent / "test"
    (test / "cat").mkdir(parents=True)
    plain().save(test / "cat" / "a.png")
    plain().save(test / "b.png")
    found = load(DataConfig(name="folder", root=str(photos), image_size=8, test=str(test))).test
    assert found is not None and found.files == ("cat/a.png",)
    assert found.skipped == (("b.png", "in no class folder, so its class is unknown"),)


def test_labels_of_test_images_are_not_learnt_from(photos: Path) -> None:
    (photos / "test" / "cat").mkdir(parents=True)
    plain().save(photos / "test" / "cat" / "t.png")
    (photos / "labels.csv").write_text("cat/a.png,cat\ndog/a.png,dog\ntest/cat/t.png,cat\n")
    assert load_photos(photos, labels="labels.csv", test=str(photos / "test")).files == ("cat/a.png", "dog/a.png")


def test_every_picture_format_of_pillow_is_looked_for() -> None:
    Image.init()
    not_pictures = {
        ".bufr", ".emf", ".eps", ".fit", ".fits", ".flc", ".fli", ".ftc", ".ftu", ".gbr", ".grib", ".h5", ".hdf",
        ".iim", ".mpeg", ".mpg", ".palm", ".pdf", ".ps", ".wmf",
    }  # fmt: skip
    readable = {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    assert readable - IMAGE_SUFFIXES - not_pictures == set()


def test_files_are_not_opened_where_the_name_tells(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (photos / "cat" / "notes").write_text("x")
    opened: list[str] = []
    really_open: Callable[..., Image.Image] = Image.open

    def open_image(path: str, *rest: Any, **options: Any) -> Image.Image:
        opened.append(Path(path).name)
        return really_open(path, *rest, **options)

    monkeypatch.setattr(Image, "open", open_image)
    assert list(find_images(photos).files) == ["cat/a.png", "dog/a.png"] and opened == ["notes"]


def test_test_folder_reached_by_a_link_stays_out(photos: Path) -> None:
    (photos.parent / "test" / "cat").mkdir(parents=True)
    plain().save(photos.parent / "test" / "cat" / "t.png")
    (photos / "unlabeled" / "more").symlink_to(photos.parent / "test" / "cat")
    assert list(find_images(photos, photos.parent / "test").files) == ["cat/a.png", "dog/a.png"]


def test_large_images_are_decoded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    really_flatten = decode._flatten
    inside, most, guard = 0, 0, threading.Lock()

    def flatten(image: Image.Image) -> Image.Image:
        nonlocal inside, most
        with guard:
            inside += 1
            most = max(most, inside)
        threading.Event().wait(0.01)
        with guard:
            inside -= 1
        return really_flatten(image)

    monkeypatch.setattr(decode, "_flatten", flatten)
    monkeypatch.setattr(decode, "LARGE_PIXELS", 100)
    monkeypatch.setattr(decode, "PER_TASK", 1)
    monkeypatch.setattr("unissl.data.images.decode.cpu_count", lambda: 4)
    source = encoded(plain(), "PNG")
    assert len(list(decode.decode_stream([(row, source) for row in range(8)], 4, 3))) == 8
    assert most == 1
