"""How much memory it takes to prepare large data sets, and to use them: a tenth of SVHN and of STL-10, of noise.

    python tests/stress/data_memory.py [--share 0.1]

Linux only. Each step is a process of its own that tells its peak resident memory over that before the load.
Preparing SVHN should take about the bytes of its largest file (scipy unpacks that into one array), preparing STL-10 and
everything after the first time next to nothing. Fails where it takes more than a third on top of that.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy.io import savemat

LOAD = """
import hashlib, pathlib, re, sys
import numpy as np, scipy.io, torch
from unissl.data import DataConfig, load
from unissl.data.sources import checksums
from unissl.augment import AugmentConfig
from unissl.augment.image_views import ImageViews

def batch(images):
    rows = np.random.default_rng(0).integers(0, len(images), 448)
    views = ImageViews(images, AugmentConfig(), (0.5,) * 3, (0.5,) * 3, torch.device("cpu"))
    return views("strong", rows)

def kilobytes():
    status = dict(re.findall(r"(VmHWM|RssFile):\\s+(\\d+)", open("/proc/self/status").read()))
    return np.array([int(status["VmHWM"]), int(status["RssFile"])])

batch(np.zeros((448, 32, 32, 3), np.uint8))  # what libraries take once
files = pathlib.Path(sys.argv[2]).iterdir()  # noise in place of the published files
checksums.MD5.update({path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in files})
open("/proc/self/clear_refs", "w").write("5")  # resets the peak
base = kilobytes()
dataset = load(DataConfig(name=sys.argv[1], root=sys.argv[2]))
batch(dataset.train.images)
print(*((kilobytes() - base) / 1024))
"""
SLACK = 60
"""Megabytes for a batch of views and buffers."""


def megabytes(name: str, root: Path, cache: Path) -> tuple[float, float]:
    """Peak, and how much of the files is mapped at the end: such pages are counted, and given back when needed."""
    command = [sys.executable, "-c", LOAD, name, str(root)]
    environment = {**os.environ, "UNISSL_CACHE": str(cache)}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    peak, mapped = (float(word) for word in output.split())
    return peak, mapped


def write_svhn(root: Path, share: float) -> float:
    """Returns the megabytes of the largest file's images."""
    rng = np.random.default_rng(0)
    for name, images in (("train", 73_257), ("extra", 531_131), ("test", 26_032)):
        count = int(share * images)
        pixels = rng.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        labels = rng.integers(1, 11, (count, 1)).astype(np.uint8)
        savemat(root / f"{name}_32x32.mat", {"X": pixels, "y": labels}, do_compression=True)
    return share * 531_131 * 3072 / 2**20


def write_stl10(root: Path, share: float) -> float:
    rng = np.random.default_rng(0)
    for name, images in (("train", 5_000), ("test", 8_000), ("unlabeled", 100_000)):
        count = int(share * images)
        with (root / f"{name}_X.bin").open("wb") as file:
            for _ in range(count):
                file.write(rng.bytes(3 * 96 * 96))
        if name != "unlabeled":
            (root / f"{name}_y.bin").write_bytes(rng.integers(1, 11, count).astype(np.uint8).tobytes())
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=0.1)
    share = parser.parse_args().share
    failed = False
    for name, write in (("svhn", write_svhn), ("stl10", write_stl10)):
        with tempfile.TemporaryDirectory() as folder:
            root, cache = Path(folder) / "data", Path(folder) / "cache"
            root.mkdir()
            needed = write(root, share)
            (first, _), (later, mapped) = (megabytes(name, root, cache) for _ in range(2))
        print(f"{name}: preparing {first:.0f} MB (largest array {needed:.0f} MB), ", end="")
        print(f"later {later:.0f} MB, {mapped:.0f} MB of it mapped pages of the cache", flush=True)
        failed = failed or first > 4 / 3 * needed + SLACK or later - mapped > SLACK
    sys.exit(failed)


if __name__ == "__main__":
    main()
