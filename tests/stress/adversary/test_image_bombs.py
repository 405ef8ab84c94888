"""Small image files that take gigabytes or minutes to decode: refused, or decoded where it can be stopped."""

from __future__ import annotations

import io
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from readers.images import chunk

from unissl.data.images.decode import MAX_SCANS, Unreadable, _to_srgb, decode
from unissl.utils.daemon_pool import DaemonPool

pytestmark = pytest.mark.adversary
MEASURE = """
import resource, sys
from unissl.data.images.decode import Unreadable, decode
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decode(sys.argv[1], 32, 3)
except Unreadable:
    pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
STOPPED = """
import time
from unissl.training.signals import Interrupted, exit_on_signal
from unissl.utils.daemon_pool import DaemonPool

with exit_on_signal(), DaemonPool(2) as pool:
    print("ready", flush=True)
    print([pool.submit(time.sleep, 600.0) for _ in range(9)][0].result())
"""
PROBING = """
import ctypes, signal, sys
from unissl.data import DataConfig
from unissl.data.folder import probe
from unissl.training.signals import exit_on_signal

def decode(*arguments):
    print("ready", flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # like a decoder, this thread is deaf
    ctypes.CDLL(None).sleep(60)

probe.decode = decode
with exit_on_signal():
    probe.probe_dataset(DataConfig(name="folder", root=sys.argv[1]))
"""


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    memory = io.BytesIO()
    image.save(memory, kind, **options)
    return memory.getvalue()


def jpeg_of_scans(count: int) -> bytes:
    """A progressive JPEG whose last scan, the refinement of an empty image, is repeated."""
    content = saved(Image.new("L", (64, 64), 128), "JPEG", progressive=True)
    start = content.rindex(b"\xff\xda")
    return content[:start] + content[start:-2] * count + content[-2:]


def png(width: int, height: int, colour: int) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    rows = zlib.compress(bytes(height * (1 + width * {0: 1, 6: 4}[colour])), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def icon() -> bytes:
    inside = png(600, 600, 6)
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 0, 0, 0, 0, 1, 32, len(inside), 22) + inside


def fits() -> bytes:
    return b"SIMPLE  =                    T".ljust(80) + b"END".ljust(2800)


def test_scans_of_a_jpeg_are_counted(tmp_path: Path) -> None:
    assert decode(jpeg_of_scans(20), 8, 3).shape == (8, 8, 3)
    with pytest.raises(Unreadable, match="more than 100 scans"):
        decode(jpeg_of_scans(MAX_SCANS), 8, 3)
    (tmp_path / "x.png").write_bytes(jpeg_of_scans(20_000))
    with pytest.raises(Unreadable, match="more than 100 scans"):
        decode(str(tmp_path / "x.png"), 8, 3)


@pytest.mark.parametrize("content", [icon(), fits(), b"P6 1 1 255\n   "], ids=["icon", "fits", "ppm"])
def test_other_formats_are_not_decoded(content: bytes) -> None:
    with pytest.raises(Unreadable, match="a format that is not decoded; convert it"):
        decode(content, 8, 3)


@pytest.mark.parametrize("size", [(1, 65_536), (65_536, 1)])
def test_long_images(size: tuple[int, int]) -> None:
    with pytest.raises(Unreadable, match="more than 65,535 pixels wide or high"):
        decode(png(*size, 0), 8, 3)


def test_floats_have_a_lower_limit() -> None:
    """They are used up to it, with an image issue."""
    with pytest.raises(Unreadable, match="more than 25 megapixels of 32 bits"):
        decode(saved(Image.new("F", (5001, 5000)), "TIFF", compression="tiff_adobe_deflate"), 8, 3)
    assert decode(saved(Image.fromarray(np.ones((9, 9), np.float32)), "TIFF"), 8, 3).min() == 255


@pytest.mark.parametrize(
    ("name", "megabytes"),
    [("long.png", 16), ("float.tif", 300), ("transparent.png", 280)],
)
def test_memory(name: str, megabytes: int, tmp_path: Path) -> None:
    """25 megapixels each."""
    content = {
        "long.png": lambda: png(1, 25_000_000, 0),
        "float.tif": lambda: saved(Image.new("F", (5000, 5000)), "TIFF", compression="tiff_adobe_deflate"),
        "transparent.png": lambda: png(5000, 5000, 6),
    }[name]()
    (tmp_path / name).write_bytes(content)
    done = subprocess.run([sys.executable, "-c", MEASURE, tmp_path / name], capture_output=True, text=True, check=True)
    assert int(done.stdout) < megabytes


def test_a_pipe_in_place_of_an_image(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.png")
    with pytest.raises(Unreadable, match="not a regular file"):
        decode(str(tmp_path / "x.png"), 8, 3)


@pytest.mark.parametrize("program", [STOPPED, PROBING], ids=["many images", "one image"])
def test_a_stop_signal_does_not_wait_for_decoding(program: str, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("L", (8, 8), len(name)).save(tmp_path / name / "1.png")
    command = [sys.executable, "-c", program, tmp_path]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    try:
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert b"stopped by SIGTERM" in said


def jpeg_in_tiff(scans: int) -> bytes:
    inner = jpeg_of_scans(scans)
    tags = [(256, 4, 64), (257, 4, 64), (258, 3, 8), (259, 3, 7), (262, 3, 1), (273, 4, 8), (277, 3, 1), (278, 4, 64)]
    return tiff([*tags, (279, 4, len(inner))], inner)


def tiff_of_one_tile(side: int) -> bytes:
    """8 x 8 pixels, in a tile that is larger."""
    inner = zlib.compress(bytes(side * side), 1)
    tags = [
        (256, 4, 8),
        (257, 4, 8),
        (258, 3, 8),
        (259, 3, 8),
        (262, 3, 1),
        (277, 3, 1),
        (322, 4, side),
        (323, 4, side),
    ]
    return tiff([*tags, (324, 4, 8), (325, 4, len(inner))], inner)


def tiff(tags: list[tuple[int, int, int]], inner: bytes) -> bytes:
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    head = b"II*\0" + struct.pack("<I", 8 + len(inner))
    return head + inner + struct.pack("<H", len(tags)) + entries + bytes(4)


def test_scans_of_a_jpeg_within_a_tiff_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unissl.data.images.decode.MAX_SCANNED_PIXELS", 64 * 64 * 50)
    assert decode(jpeg_in_tiff(20), 8, 3).shape == (8, 8, 3)
    with pytest.raises(Unreadable, match="too many scans for its size"):
        decode(jpeg_in_tiff(60), 8, 3)


def test_scans_are_weighed_by_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """90 scans are few for a thumbnail; over 100 megapixels they took 6 s."""
    monkeypatch.setattr("unissl.data.images.decode.MAX_SCANNED_PIXELS", 64 * 64 * 50)
    with pytest.raises(Unreadable, match="too many scans for its size"):
        decode(jpeg_of_scans(60), 8, 3)


def test_a_tile_larger_than_the_image() -> None:
    assert decode(tiff_of_one_tile(64), 8, 3).shape == (8, 8, 3)
    with pytest.raises(Unreadable, match="takes more than 590 MB"):
        decode(tiff_of_one_tile(25_008), 8, 3)


def turned(image: Image.Image, kind: str) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(image, kind, exif=exif.tobytes())


@pytest.mark.parametrize(
    ("make", "bytes_per_pixel"),
    [
        (lambda: saved(Image.new("RGB", (64, 64)), "PNG"), 4),
        (lambda: saved(Image.new("RGBA", (64, 64)), "PNG"), 8),
        (lambda: saved(Image.new("RGB", (64, 64)), "PNG", transparency=(0, 0, 0)), 9),
        (lambda: turned(Image.new("RGBA", (64, 64)), "PNG"), 12),
        (lambda: saved(Image.new("RGB", (64, 64)), "WEBP"), 16),
        (lambda: turned(Image.new("RGBA", (64, 64)), "WEBP"), 20),
        (lambda: saved(Image.new("I;16", (64, 64)), "PNG"), 7),
        (lambda: saved(Image.new("CMYK", (64, 64)), "TIFF"), 8),
    ],
    ids=["RGB", "RGBA", "transparent colour", "turned RGBA", "WebP", "turned WebP", "16 bit", "CMYK"],
)
def test_memory_is_bounded_by_format_and_mode(
    make: Callable[[], bytes], bytes_per_pixel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = make()
    monkeypatch.setattr("unissl.data.images.decode.MAX_DECODED_BYTES", 64 * 64 * bytes_per_pixel)
    decode(content, 8, 3)
    monkeypatch.setattr("unissl.data.images.decode.MAX_DECODED_BYTES", 64 * 64 * bytes_per_pixel - 1)
    with pytest.raises(Unreadable, match="save a smaller copy"):
        decode(content, 8, 3)


def test_coefficients_of_a_progressive_jpeg_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    content = saved(Image.new("RGB", (64, 64)), "JPEG", progressive=True, subsampling=0)
    monkeypatch.setattr("unissl.data.images.decode.MAX_DECODED_BYTES", 64 * 64 * 6)
    with pytest.raises(Unreadable, match="save a smaller copy"):
        decode(content, 8, 3)
    decode(saved(Image.new("RGB", (64, 64)), "JPEG"), 8, 3)


def test_a_large_profile_is_not_kept() -> None:
    """64 profiles of 16 MB were, a gigabyte."""
    image = Image.new("RGB", (8, 8))
    image.info["icc_profile"] = bytes((4 << 20) + 1)
    before = _to_srgb.cache_info().currsize
    decode(image, 8, 3)
    assert _to_srgb.cache_info().currsize == before


def test_what_has_not_begun_is_dropped() -> None:
    begun, go = [], threading.Event()
    with DaemonPool(1) as pool:
        futures = [pool.submit(lambda n: (begun.append(n), go.wait(20)), number) for number in range(3)]
        while not begun:
            time.sleep(0.01)
    go.set()
    futures[0].result(20)
    assert begun == [0] and futures[1].cancelled() and futures[2].cancelled()
