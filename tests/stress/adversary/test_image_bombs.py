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
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from readers.images import chunk

from unissl.data.images.decode import MAX_SCANS, Unreadable, decode
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
    list(pool.map(time.sleep, [600.0] * 9))
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


def test_a_stop_signal_does_not_wait_for_decoding() -> None:
    process = subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    try:
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert b"stopped by SIGTERM" in said


def test_what_has_not_begun_is_dropped() -> None:
    begun, go = [], threading.Event()
    with DaemonPool(1) as pool:
        futures = [pool.submit(lambda n: (begun.append(n), go.wait(20)), number) for number in range(3)]
        while not begun:
            time.sleep(0.01)
    go.set()
    futures[0].result(20)
    assert begun == [0] and futures[1].cancelled() and futures[2].cancelled()
