"""`unissl train` on pools of up to 54,000 images: memory, and time by the number of images.

    python benchmarks/photo_pool.py --root DATA --out runs/pool
    python benchmarks/photo_pool.py --root DATA --out runs/pool --sizes 10000,54000

Half of the images are from CIFAR-10, half from Fashion-MNIST (DATA as for photo_collections.py), scaled to 128 px and
written as JPEG files: 20 classes, 4 labels each. Every size is one run of the command with its defaults and an empty
cache. The table has its processor time, which other load on the machine changes less than the clock, the processor time
per image, and the largest resident memory of the process, memory-mapped files included.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from photo_collections import COLLECTIONS
from PIL import Image

SIDE, LABELS_PER_CLASS = 128, 4


def write_pool(root: Path, folder: Path, size: int) -> None:
    """photos/ and labels.csv."""
    (folder / "photos").mkdir(parents=True)
    rows = []
    for name in ("cifar10", "fashion-mnist"):
        collection = COLLECTIONS[name](root)
        seen = dict.fromkeys(range(len(collection.names)), 0)
        for number, row in enumerate(np.random.default_rng(0).permutation(len(collection.labels))[: size // 2]):
            file, label = f"{name}-{number:05}.jpg", int(collection.labels[row])
            image = Image.open(io.BytesIO(collection.encoded[row])).convert("RGB")
            image.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(folder / "photos" / file, quality=90)
            if seen[label] < LABELS_PER_CLASS:
                rows.append([file, f"{name} {collection.names[label]}"])
            seen[label] += 1
    with (folder / "labels.csv").open("w", newline="") as file_:
        csv.writer(file_).writerows([["file", "label"], *rows])


def one_run(folder: Path, options: list[str]) -> dict[str, float]:
    """Wall-clock and processor seconds, and the peak of resident memory in MB."""
    words = ["train", "--images", str(folder / "photos"), "--labels", str(folder / "labels.csv"), "--quiet"]
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "unissl", *words, "--out", str(folder / "run"), *options])
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"unissl train failed with status {status}")
    summary = json.loads((folder / "run" / "summary.json").read_text())
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss / 1024,
        "distilled": bool(summary.get("distilled")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", default="10000,27000,54000")
    parser.add_argument("--option", nargs="*", default=[], help="further words for unissl train")
    options = parser.parse_args()
    results = {}
    for size in map(int, options.sizes.split(",")):
        done, folder = options.out / f"{size}.json", options.out / f"work-{size}"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            write_pool(options.root, folder, size)
            os.environ["UNISSL_CACHE"] = str(folder / "cache")
            done.write_text(json.dumps(one_run(folder, options.option), indent=1))
            shutil.rmtree(folder)
        results[size] = json.loads(done.read_text())
    print("| images | distilled | seconds | processor seconds | per 1,000 images | peak MB |\n" + "|---" * 6 + "|")
    for size, row in results.items():
        print(
            f"| {size:,} | {'yes' if row['distilled'] else 'no'} | {row['seconds']:.0f} | {row['cpu_seconds']:.0f} "
            f"| {1000 * row['cpu_seconds'] / size:.1f} | {row['peak_mb']:.0f} |"
        )


if __name__ == "__main__":
    main()
