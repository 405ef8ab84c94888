"""Image files of each kind, as Pillow writes them, with what they may carry: palettes, profiles, EXIF, text, frames."""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
from case import Make, Reader
from mutate import EXTREMES
from PIL import Image, ImageCms, PngImagePlugin

from unissl.data.images.decode import decode_stream, image_size, looks_like_image

KINDS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")


def picture(mode: str, size: tuple[int, int] = (13, 11)) -> Image.Image:
    pixels = np.random.RandomState(0).randint(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    return Image.fromarray(pixels).convert("RGB").convert(mode)


def encoded(kind: str) -> list[bytes]:
    """A few files of a kind."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("XYZ")).tobytes()
    exif = Image.Exif()
    exif[0x0112] = 6
    modes = {"JPEG": ("RGB", "L", "CMYK"), "GIF": ("P", "L"), "BMP": ("RGB", "P", "1")}
    found = []
    for mode in modes.get(kind, ("RGB", "L", "RGBA")):
        memory = io.BytesIO()
        extra = {"icc_profile": profile} if kind in ("PNG", "JPEG", "TIFF", "WEBP") else {}
        if kind in ("PNG", "JPEG", "WEBP", "TIFF"):
            extra["exif"] = exif.tobytes()
        if kind == "PNG":
            text = PngImagePlugin.PngInfo()
            text.add_text("key", "some text", zip=mode == "L")
            extra["pnginfo"] = text
        if kind == "TIFF":
            extra["compression"] = {"RGB": "tiff_lzw", "L": "raw", "RGBA": "tiff_adobe_deflate"}[mode]
        if kind == "GIF":
            extra |= {"save_all": True, "append_images": [picture(mode, (13, 11))]}
        picture(mode).save(memory, kind, **extra)
        found.append(memory.getvalue())
    return found


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def hostile_png(rng: Random) -> bytes:
    """Well-formed chunks with sizes, text and palettes of any kind."""
    width, height = (rng.choice((0, 1, 8, 20_000, 60_000, 2**31 - 1)) for _ in range(2))
    head = struct.pack(
        ">IIBBBBB", width, height, rng.choice((1, 8, 16)), rng.choice((0, 2, 3, 4, 6)), 0, 0, rng.choice((0, 1))
    )
    inner = [chunk(b"IHDR", head)]
    for _ in range(rng.randrange(4)):
        bomb = zlib.compress(bytes(rng.choice((10, 2_000_000))), 9)
        inner.append(
            rng.choice(
                (
                    chunk(b"zTXt", b"key\0\0" + bomb),
                    chunk(b"iTXt", b"key\0\1\0\0\0" + bomb),
                    chunk(b"iCCP", b"key\0\0" + bomb),
                    chunk(b"tEXt", b"key\0" + rng.randbytes(20)),
                    chunk(b"PLTE", rng.randbytes(rng.choice((3, 768, 7)))),
                    chunk(b"tRNS", rng.randbytes(rng.choice((1, 2, 6, 300)))),
                    chunk(b"eXIf", b"MM\0*" + rng.randbytes(30)),
                    chunk(b"acTL", struct.pack(">II", rng.choice(EXTREMES) % 2**32, 0)),
                )
            )
        )
    inner.append(chunk(b"IDAT", zlib.compress(bytes(rng.choice((0, 100, 100_000))))))
    return b"\x89PNG\r\n\x1a\n" + b"".join(inner) + chunk(b"IEND", b"")


def hostile_tiff(rng: Random) -> bytes:
    """A directory of tags with any type, count and offset, perhaps one that leads to itself."""
    tags = [
        (256, 4),
        (257, 4),
        (258, 3),
        (259, 3),
        (262, 3),
        (273, 4),
        (277, 3),
        (278, 4),
        (279, 4),
        (322, 4),
        (34675, 7),
    ]
    entries = b""
    for tag, kind in sorted(rng.sample(tags, rng.randrange(5, len(tags)))):
        value = rng.choice((1, 8, 8, 64, *EXTREMES)) % 2**32
        entries += struct.pack(
            "<HHII", tag, rng.choice((kind, kind, rng.randrange(14))), rng.choice((1, 1, value)), value
        )
    return (
        b"II*\0\x08\0\0\0"
        + struct.pack("<H", len(entries) // 12)
        + entries
        + struct.pack("<I", rng.choice((0, 8, 2**31)))
    )


HOSTILE = {"PNG": hostile_png, "TIFF": hostile_tiff}


def image_reader(kind: str, home: Path) -> Reader:
    path = str(home / "image.bin")

    def read(content: bytes) -> None:
        """By the path and by the bytes, as folders and parquet files do; what is wrong comes back as a reason."""
        from unissl.data.images.decode import Unreadable

        Path(path).write_bytes(content)
        looks_like_image(path)
        results = [result for _, result in decode_stream(enumerate([path, content]), 8, 3)]
        if not any("MemoryError" in str(result) for result in results):  # which depends on where it is read from
            assert len({type(result) for result in results}) == 1, "by path and by content it is not the same"
        with suppress(Unreadable):
            image_size(content)
        if isinstance(results[0], Unreadable):
            raise as_user_error(results[0])

    return Reader(encoded(kind), read, HOSTILE.get(kind), share=0.3)


def as_user_error(reason: Exception) -> Exception:
    """What a folder says about a labelled image that cannot be read."""
    from unissl.data.store.decode_to_cache import unreadable_message
    from unissl.errors import UserError

    return UserError(unreadable_message("image.bin", str(reason)))


READERS: dict[str, Make] = {f"image-{kind.lower()}": partial(image_reader, kind) for kind in KINDS}
