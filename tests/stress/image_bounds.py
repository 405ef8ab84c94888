"""Memory and time that single image files take: large ones of every kind, and mutated ones below 20 MB.

    python tests/stress/image_bounds.py [--count 2000] [--seed 0] [--only NAME]

Linux only; about five minutes of an idle core. Each file is decoded by a fork of this process, which tells its peak
resident memory over that before, and its CPU time. Fails where a file takes more than 600 MB or 5 seconds, and names
the worst ones. Seed and number of a mutated file reproduce it.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import re
import resource
import struct
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent / "fuzz"))
from mutate import mutated
from readers.images import chunk, encoded

from unissl.data.images.decode import Unreadable, decode

MEGABYTES, SECONDS = 600, 5
MAX_FILE = 20 << 20
SIZE = 224
WIDE, HIGH = 12_500, 8_000
"""100 megapixels, which the header may announce. What is refused is tried again with fewer."""
SMALLER = {84: 6_720, 73: 5_880, 49: 3_920, 36: 2_880, 29: 2_320}
"""Megapixels -> height."""
KINDS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")


context = multiprocessing.get_context("fork")


class Cost(NamedTuple):
    name: str
    outcome: str
    megabytes: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.megabytes:6.0f} MB {self.seconds:6.2f} s  {self.name}: {self.outcome}"


def cost(name: str, content: bytes) -> Cost:
    """Of decoding in a fork; a crash and a minute of CPU time are outcomes too."""
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_decode, args=(content, sender))
    process.start()
    sender.close()
    try:
        return Cost(name, *receiver.recv())
    except EOFError:
        process.join()
        return Cost(name, f"crashed with {process.exitcode}", float("inf"), float("inf"))
    finally:
        process.join()


def _decode(content: bytes, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    memory, begin = _kilobytes("VmRSS"), time.process_time()
    try:
        decode(content, SIZE, 3)
        outcome = "decoded"
    except Unreadable as reason:
        outcome = str(reason)[:90]
    sender.send((outcome, (_kilobytes("VmHWM") - memory) / 1024, time.process_time() - begin))


def _kilobytes(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1])


def saved(mode: str, kind: str, size: tuple[int, int] | None = None, **options: object) -> bytes:
    memory = io.BytesIO()
    Image.new(mode, size or (WIDE, HIGH)).save(memory, kind, **options)
    return memory.getvalue()


def png(depth: int, colour: int, *, interlaced: bool = False, more: bytes = b"", exif: bool = False) -> bytes:
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    head = struct.pack(">IIBBBBB", WIDE, HIGH, depth, colour, 0, 0, interlaced)
    rows = zlib.compress(bytes(HIGH * (1 + WIDE * bits // 8) * (2 if interlaced else 1)), 1)
    turned = chunk(b"eXIf", b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0") if exif else b""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + more + turned + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def scans(content: bytes, count: int) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    start = content.rindex(b"\xff\xda")
    return content[:start] + content[start:-2] * count + content[-2:]


def jpeg_in_tiff(count: int) -> bytes:
    """TIFF whose strip is a whole progressive JPEG of many scans."""
    side = 6_000
    inner = scans(saved("L", "JPEG", (side, side), progressive=True), count)
    tags = [(256, 4, side), (257, 4, side), (258, 3, 8), (259, 3, 7), (262, 3, 1), (273, 4, 8), (277, 3, 1)]
    tags += [(278, 4, side), (279, 4, len(inner))]
    return tiff(tags, inner)


def large_tile(side: int) -> bytes:
    """TIFF of 8 x 8 pixels in one tile that is larger."""
    inner = zlib.compress(bytes(side * side * 4), 1)
    tags = [
        (256, 4, 8),
        (257, 4, 8),
        (258, 3, 8),
        (259, 3, 8),
        (262, 3, 2),
        (277, 3, 4),
        (322, 4, side),
        (323, 4, side),
    ]
    tags += [(324, 4, 8), (325, 4, len(inner)), (338, 3, 2)]
    return tiff(tags, inner)


def tiff(tags: list[tuple[int, int, int]], inner: bytes) -> bytes:
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    head = b"II*\0" + struct.pack("<I", 8 + len(inner))
    return head + inner + struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0)


def frames(kind: str, count: int, size: tuple[int, int] = (200, 200), **options: object) -> bytes:
    rng = np.random.default_rng(0)
    memory = io.BytesIO()
    images = [Image.fromarray(np.full((size[1], size[0]), rng.integers(256), np.uint8)) for _ in range(count)]
    images[0].save(memory, kind, save_all=True, append_images=images[1:], **options)
    return memory.getvalue()


def tiff_loop(count: int) -> bytes:
    """Many directories, so that counting pages takes long."""
    one = frames("TIFF", 2, (8, 8))
    first = struct.unpack("<I", one[4:8])[0]
    entries = struct.unpack("<H", one[first : first + 2])[0]
    directory = one[first : first + 2 + 12 * entries]
    content = bytearray(one)
    previous = first + len(directory)
    for _ in range(count):
        content[previous : previous + 4] = struct.pack("<I", len(content))
        content += directory + bytes(4)
        previous = len(content) - 4
    return bytes(content)


def bmp_rle() -> bytes:
    pixels = (b"\xff\0" * (WIDE // 255) + bytes((WIDE % 255, 0)) + b"\0\0") * HIGH + b"\0\1"
    palette = bytes(1024)
    info = struct.pack("<IiiHHIIiiII", 40, WIDE, HIGH, 1, 8, 1, len(pixels), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 54 + 1024 + len(pixels), 0, 0, 54 + 1024) + info + palette + pixels


def exif_of(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


LARGE: dict[str, Callable[[], bytes]] = {
    "png grey": lambda: png(8, 0),
    "png grey 1 bit": lambda: png(1, 0),
    "png grey 16 bit": lambda: png(16, 0),
    "png rgb": lambda: png(8, 2),
    "png rgb 16 bit": lambda: png(16, 2),
    "png rgb turned": lambda: png(8, 2, exif=True),
    "png rgb transparent colour": lambda: png(8, 2, more=chunk(b"tRNS", bytes(6))),
    "png palette": lambda: png(8, 3, more=chunk(b"PLTE", bytes(768))),
    "png palette transparent": lambda: png(8, 3, more=chunk(b"PLTE", bytes(768)) + chunk(b"tRNS", bytes(256))),
    "png grey alpha": lambda: png(8, 4),
    "png grey alpha turned": lambda: png(8, 4, exif=True),
    "png rgba": lambda: png(8, 6),
    "png rgba 16 bit": lambda: png(16, 6),
    "png rgba turned": lambda: png(8, 6, exif=True),
    "png rgba interlaced": lambda: png(8, 6, interlaced=True),
    "jpeg rgb": lambda: saved("RGB", "JPEG"),
    "jpeg cmyk": lambda: saved("CMYK", "JPEG"),
    "jpeg rgb turned": lambda: saved("RGB", "JPEG", exif=exif_of(6)),
    "jpeg progressive": lambda: saved("RGB", "JPEG", progressive=True, subsampling=0),
    "jpeg progressive cmyk": lambda: saved("CMYK", "JPEG", progressive=True),
    "jpeg progressive of 90 scans": lambda: scans(saved("RGB", "JPEG", progressive=True, subsampling=0), 80),
    "jpeg long": lambda: saved("RGB", "JPEG", (65_500, 1_500), progressive=True),
    "jpeg long of 90 scans": lambda: scans(saved("L", "JPEG", (1_500, 65_500), progressive=True), 80),
    "webp rgb": lambda: saved("RGB", "WEBP"),
    "webp rgba": lambda: saved("RGBA", "WEBP"),
    "webp rgba lossless": lambda: saved("RGBA", "WEBP", lossless=True, method=0),
    "webp rgba turned": lambda: saved("RGBA", "WEBP", exif=exif_of(6)),
    "webp frames": lambda: frames("WEBP", 300),
    "gif": lambda: saved("P", "GIF"),
    "gif transparent": lambda: saved("P", "GIF", transparency=0),
    "gif frames": lambda: frames("GIF", 2_000),
    "gif large frames": lambda: frames("GIF", 3, (WIDE, HIGH)),
    "apng frames": lambda: frames("PNG", 500),
    "bmp rle": bmp_rle,
    "tiff rgb": lambda: saved("RGB", "TIFF", compression="tiff_adobe_deflate"),
    "tiff rgb turned": lambda: saved("RGB", "TIFF", compression="tiff_adobe_deflate", tiffinfo={274: 6}),
    "tiff rgba": lambda: saved("RGBA", "TIFF", compression="tiff_adobe_deflate"),
    "tiff rgba turned": lambda: saved("RGBA", "TIFF", compression="tiff_adobe_deflate", tiffinfo={274: 6}),
    "tiff cmyk": lambda: saved("CMYK", "TIFF", compression="tiff_adobe_deflate"),
    "tiff lab": lambda: saved("LAB", "TIFF", compression="tiff_adobe_deflate"),
    "tiff grey 16 bit": lambda: saved("I;16", "TIFF", compression="tiff_adobe_deflate"),
    "tiff grey 16 bit turned": lambda: saved("I;16", "TIFF", compression="tiff_adobe_deflate", tiffinfo={274: 6}),
    "tiff grey": lambda: saved("L", "TIFF", compression="tiff_lzw"),
    "tiff grey alpha": lambda: saved("LA", "TIFF", compression="tiff_adobe_deflate"),
    "tiff 1 bit": lambda: saved("1", "TIFF", compression="group4"),
    "tiff one strip": lambda: saved("RGB", "TIFF", compression="tiff_adobe_deflate", strip_size=1 << 30),
    "tiff rgba one strip": lambda: saved("RGBA", "TIFF", compression="tiff_adobe_deflate", strip_size=1 << 30),
    "tiff float": lambda: saved("F", "TIFF", (5_000, 5_000), compression="tiff_adobe_deflate"),
    "tiff float turned": lambda: saved("F", "TIFF", (5_000, 5_000), compression="tiff_lzw", tiffinfo={274: 6}),
    "tiff 32 bit": lambda: saved("I", "TIFF", (5_000, 5_000), compression="tiff_adobe_deflate"),
    "tiff jpeg": lambda: saved("RGB", "TIFF", compression="jpeg"),
    "tiff jpeg of 20 scans": lambda: jpeg_in_tiff(10),
    "tiff jpeg of 20,000 scans": lambda: jpeg_in_tiff(20_000),
    "tiff large tile": lambda: large_tile(20_000),
    "tiff tile of 11,000": lambda: large_tile(11_000),
    "tiff pages": lambda: tiff_loop(100_000),
    **{f"{kind.lower()} noise": partial(lambda kind: noise(kind), kind) for kind in KINDS},
}
"""Files of the largest sizes that each format and mode may announce, and small files with much to do."""


def noise(kind: str) -> bytes:
    """The largest file below 20 MB, of pixels that do not compress."""
    side = 2_400
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    memory = io.BytesIO()
    Image.fromarray(pixels).save(memory, kind)
    return memory.getvalue()


def originals(kind: str) -> list[bytes]:
    """Small files, and some of a photo's size, whose compressed pixels have a length that damage can stretch."""
    smooth = Image.fromarray(np.add.outer(np.arange(600) // 3, np.arange(900) // 9).astype(np.uint8))
    more = {
        "JPEG": [("RGB", {"progressive": True}), ("L", {"restart_marker_rows": 1}), ("CMYK", {"progressive": True})],
        "PNG": [("RGBA", {}), ("P", {}), ("I;16", {}), ("1", {})],
        "WEBP": [("RGB", {}), ("RGBA", {"lossless": True})],
        "GIF": [("P", {}), ("L", {"interlace": 1})],
        "BMP": [("RGB", {}), ("L", {})],
        "TIFF": [("RGB", {"compression": name}) for name in ("jpeg", "tiff_lzw", "packbits", "tiff_adobe_deflate")]
        + [("1", {"compression": "group4"}), ("F", {"compression": "zstd"}), ("CMYK", {}), ("I;16", {})],
    }[kind]
    found = encoded(kind)
    for mode, options in more:
        memory = io.BytesIO()
        image = smooth.convert("I").convert(mode) if mode == "I;16" else smooth.convert(mode)
        image.save(memory, kind, **options)
        found.append(memory.getvalue())
    return found


SIZE_FIELDS: dict[str, Callable[[bytes], list[tuple[int, str]]]] = {
    "PNG": lambda content: [(16, ">I"), (20, ">I")],
    "GIF": lambda content: [(6, "<H"), (8, "<H"), (content.find(b"\x2c") + 5, "<H"), (content.find(b"\x2c") + 7, "<H")],
    "BMP": lambda content: [(18, "<i"), (22, "<i"), (28, "<H"), (30, "<I")],
    "JPEG": lambda content: [
        (found.start() + offset, ">H") for found in re.finditer(rb"\xff[\xc0\xc2]", content[:2000]) for offset in (5, 7)
    ],
    "WEBP": lambda content: [(26, "<H"), (28, "<H"), (24, "<I"), (21, "<I")],
    "TIFF": lambda content: [
        (found.start() + 8, "<I")
        for found in re.finditer(
            b"|".join(re.escape(struct.pack("<H", tag)) for tag in (256, 257, 258, 277, 278)), content
        )
        if found.start() + 12 <= len(content)
    ],
}
"""Where a header says how large an image is."""


def resized_header(rng: Random, kind: str, content: bytes) -> bytes:
    """Announces another size: the pixels are missing, or mean something else."""
    changed = bytearray(content)
    for start, code in SIZE_FIELDS[kind](content):
        size = struct.calcsize(code)
        if rng.random() < 0.7 and 0 <= start <= len(changed) - size:
            value = rng.choice((1, 9, 900, 5_000, 9_999, 16_383, 30_000, 65_535, 100_000_000)) % (1 << (8 * size - 1))
            changed[start : start + size] = struct.pack(code, value)
    if kind == "PNG":
        changed[29:33] = struct.pack(">I", zlib.crc32(bytes(changed[12:29])))
    return bytes(changed)


def _made_elsewhere(make: Callable[[], bytes]) -> bytes:
    """By a fork: memory that this process has used and freed would be used again and not count."""
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send_bytes(make()))
    process.start()
    try:
        return receiver.recv_bytes()
    finally:
        process.join()


def mutated_files(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Equally many of each kind; a third with another size in the header, and some of those damaged as well."""
    files = {kind: originals(kind) for kind in KINDS}
    for number in range(count):
        rng = Random(f"{seed}/{number}")
        kind = KINDS[number % len(KINDS)]
        choice = rng.random()
        if choice < 0.5:
            content = mutated(rng, files[kind])
        else:
            content = resized_header(rng, kind, rng.choice(files[kind]))
            content = mutated(rng, [content]) if choice > 0.8 else content
        if len(content) <= MAX_FILE:
            yield f"{kind.lower()} {seed}/{number}", content


def costs_of_large(name: str, make: Callable[[], bytes]) -> Iterator[Cost]:
    """At 100 megapixels, and where that takes too much at the most that is decoded."""
    global HIGH
    before = HIGH
    for megapixels, high in {100: before, **SMALLER}.items():
        HIGH = high
        yield (found := cost(f"{name} ({megapixels} megapixels)", _made_elsewhere(make)))
        if "to decode" not in found.outcome and "scans" not in found.outcome:
            break
    HIGH = before


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--count", type=int, default=2000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", default="", help="large files whose name contains this")
    said = options.parse_args()
    warnings.simplefilter("ignore")
    decode(encoded("PNG")[0], SIZE, 3)  # what libraries take once
    costs = []
    for name, make in LARGE.items():
        if said.only in name:
            for found in costs_of_large(name, make):
                costs.append(found)
                print(found, flush=True)
    mutants = [cost(*file) for file in mutated_files(said.count, said.seed)]
    costs += mutants
    decoded = sum(found.outcome == "decoded" for found in mutants)
    print(f"{len(costs)} files; of {len(mutants)} mutated ones {decoded} decoded; the worst:")
    worst = (
        sorted(mutants, key=lambda found: -found.megabytes)[:8] + sorted(mutants, key=lambda found: -found.seconds)[:8]
    )
    print(*dict.fromkeys(worst), sep="\n")
    failed = [found for found in costs if found.megabytes > MEGABYTES or found.seconds > SECONDS]
    print(f"{len(failed)} took more than {MEGABYTES} MB or {SECONDS} s")
    print(*failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
