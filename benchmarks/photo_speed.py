"""How long `unissl train` takes on photos, relative to decoding each photo once and one pass through the backbone.

    python benchmarks/photo_speed.py PHOTOS LABELS.csv --out runs/speed
    python benchmarks/photo_speed.py PHOTOS LABELS.csv --out runs/speed --rounds 3

Every round measures, in turns and with an empty cache each: the floor (decode and one pass, in one process that has
imported everything), the whole command with --fast, and the whole command with its defaults, report included. Then one
label is removed, and the time from the start of the command to its first training step is measured: the features are in
the cache. The table has medians over the rounds. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

FLOOR = """
import sys, time
import numpy as np, torch
from unissl.data.folder.index import find_images
from unissl.data.images.decode import Unreadable, decode_stream
from unissl.features import BATCH, forward_features, load_backbone, normalisation
from unissl.augment.views import normalise
from unissl.nets import DEFAULT_BACKBONE
from unissl.run.budget import DEFAULT_PHOTO_SIZE_PX
from pathlib import Path

root = Path(sys.argv[1])
files = [str(root / name) for name in find_images(root).files]
net, images = load_backbone(DEFAULT_BACKBONE, 3), []
start = time.perf_counter()
with torch.inference_mode():
    for _, result in decode_stream(enumerate(files), DEFAULT_PHOTO_SIZE_PX, 3):
        if not isinstance(result, Unreadable):
            images.append(result.pixels)
        if len(images) == BATCH:
            forward_features(net, normalise(torch.from_numpy(np.stack(images)), *normalisation(3)), maps=False)
            images.clear()
print(time.perf_counter() - start)
"""
FIRST_STEP = """
import sys, time
start = time.perf_counter()
from unissl.cli import main
from unissl.training.trainer import Trainer

def stop(self):
    print(time.perf_counter() - start, flush=True)
    sys.exit(0)

Trainer.run = stop
main(sys.argv[1:])
"""


def seconds(words: list[str], cache: Path) -> float:
    """Wall-clock time of a command."""
    start = time.perf_counter()
    subprocess.run(words, check=True, env={**os.environ, "UNISSL_CACHE": str(cache)})
    return time.perf_counter() - start


def printed_seconds(words: list[str], cache: Path) -> float:
    """The number in the last line that a command prints."""
    environment = {**os.environ, "UNISSL_CACHE": str(cache)}
    done = subprocess.run(words, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[-1])


def without_a_label(labels: Path, out: Path) -> Path:
    """The label file without its last line of a class that has others."""
    with labels.open(newline="") as file:
        rows = list(csv.reader(file))
    with out.open("w", newline="") as file:
        csv.writer(file).writerows(rows[:-1])
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    train = [sys.executable, "-m", "unissl", "train", "--images", str(options.photos), "--quiet"]
    times: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name in ("cache", "fast", "default", "second"):
            shutil.rmtree(options.out / name, ignore_errors=True)
        floor = printed_seconds([sys.executable, "-c", FLOOR, str(options.photos)], options.out / "cache")
        times.setdefault("floor", []).append(floor)
        for name, flags in (("fast", ["--fast"]), ("default", [])):
            shutil.rmtree(options.out / "cache", ignore_errors=True)
            words = [*train, "--labels", str(options.labels), "--out", str(options.out / name), *flags]
            times.setdefault(name, []).append(seconds(words, options.out / "cache"))
        fewer = without_a_label(options.labels, options.out / "fewer.csv")
        words = [*train[3:], "--labels", str(fewer), "--out", str(options.out / "second")]
        started = printed_seconds([sys.executable, "-c", FIRST_STEP, *words], options.out / "cache")
        times.setdefault("first step of a second run", []).append(started)
    print("| what | seconds | times the floor |\n|---|---|---|")
    floor = statistics.median(times["floor"])
    for name, values in times.items():
        print(f"| {name} | {statistics.median(values):.1f} | {statistics.median(values) / floor:.1f} |")


if __name__ == "__main__":
    main()
