"""A pool of a million images: speed of the cache build, resuming a killed build, cost of training.

    python benchmarks/large_pool.py --folder /somewhere/with/8/GB

Writes a parquet file of synthetic 32 x 32 images and builds its cache; the builder is killed with SIGKILL and another
one resumes. Decodes a folder of JPEG photos for a realistic rate. Trains on the large pool and on one of 10,000, a few
steps of each in turn, so that other load on the machine slows both. Prints JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

SIDE, CLASSES, LABELLED = 32, 10, 40
ROW_GROUP = 10_000


def write_parquet(path: Path, count: int) -> None:
    """Uncompressed images (BMP), so that a million take seconds to write. 40 labels, the rest is the pool."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE)).save(buffer, "BMP")
    header = buffer.getvalue()[: -3 * SIDE * SIDE]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", kind), ("label", pa.int64())])
    rng = np.random.default_rng(0)
    partial = path.with_suffix(".partial")
    with pq.ParquetWriter(partial, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, count, ROW_GROUP):
            rows = np.arange(start, min(start + ROW_GROUP, count))
            pixels = rng.integers(0, 256, (len(rows), 3 * SIDE * SIDE), dtype=np.uint8)
            images = [{"bytes": header + row.tobytes(), "path": None} for row in pixels]
            labels = [int(row) % CLASSES if row < LABELLED else None for row in rows]
            columns = [pa.array(images, kind), pa.array(labels, pa.int64())]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    partial.rename(path)


def write_photos(folder: Path, count: int) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(count):
        subfolder = folder / f"class{number % 2}" if number < 8 else folder / "unlabeled"
        subfolder.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        coarse.resize((640, 480)).save(subfolder / f"{number}.jpg", quality=90)


def worker(name: str, root: Path, **options: Any) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, "--worker", name, "--folder", str(root)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def timed_load(kind: str, root: Path) -> float:
    started = time.monotonic()
    if worker(f"load-{kind}", root, stderr=subprocess.DEVNULL).wait():
        raise RuntimeError(f"loading {root} failed")
    return time.monotonic() - started


def rows_done(cache: Path) -> int:
    marks = list(cache.glob("*.tmp/.rows"))
    return int(np.count_nonzero(np.fromfile(marks[0], dtype=np.uint8))) if marks else 0


def build_with_a_kill(source: Path, cache: Path, count: int) -> dict[str, float]:
    """Kill the builder at two fifths, then let another one finish."""
    started = time.monotonic()
    process = worker("load-parquet", source, stderr=subprocess.DEVNULL)
    while rows_done(cache) < 0.4 * count:
        if process.poll() is not None:
            raise RuntimeError("the builder ended before it could be killed; use more images")
        time.sleep(0.5)
    process.kill()
    process.wait()
    first, resumed = time.monotonic() - started, rows_done(cache)
    second = timed_load("parquet", source)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "images": count,
        "images_per_second_of_CPU": round(count / (used.ru_utime + used.ru_stime)),
        "killed_after_seconds": round(first, 1),
        "rows_kept": resumed,
        "seconds_to_resume": round(second, 1),
        "images_per_second": round(count / (first + second)),
        "images_per_second_after_the_kill": round((count - resumed) / second),
        "seconds_to_open_when_built": round(timed_load("parquet", source), 1),
    }


def train_in_turn(large: Path, small: Path, steps: int, pairs: int) -> dict[str, Any]:
    processes = {"large": worker("train", large), "small": worker("train", small)}
    for process in processes.values():
        run_steps(process, 3)  # the first steps also fill caches
    medians: dict[str, list[float]] = {name: [] for name in processes}
    memory: dict[str, dict[str, int]] = {name: {} for name in processes}
    for turn in range(pairs):
        order = list(processes) if turn % 2 else list(processes)[::-1]
        for name in order:
            report = run_steps(processes[name], steps // pairs)
            medians[name].append(report["seconds"])
            for key, value in report["memory"].items():
                memory[name][key] = max(value, memory[name].get(key, 0))
    for process in processes.values():
        process.communicate("", timeout=60)
    ratios = [one / other for one, other in zip(medians["large"], medians["small"], strict=True)]
    return {
        "steps": steps // pairs * pairs,
        "seconds_per_step": {name: round(statistics.median(values), 4) for name, values in medians.items()},
        "ratio_of_step_times": round(statistics.median(ratios), 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "most_memory_in_MB": memory,
    }


def run_steps(process: subprocess.Popen[str], steps: int) -> Any:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{steps}\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def run_worker(name: str, root: Path) -> None:
    from unissl.data import DataConfig, load

    if name.startswith("load"):
        load(DataConfig(name=name.removeprefix("load-"), root=str(root), image_size=SIDE))
    else:
        train_on_demand(root)


def train_on_demand(root: Path) -> None:
    """For each number read from stdin, train that many steps; print the median time of one and the process's memory."""
    from unissl.utils.process import prepare_process

    prepare_process()
    import torch

    from unissl.data import load
    from unissl.run.budget import StepTimer
    from unissl.run.config import build_config, fit_to_data
    from unissl.run.inputs import prepare_inputs
    from unissl.run.setup import build_training

    torch.set_num_threads(1)
    tree = {
        "data": {"name": "parquet", "root": str(root), "image_size": SIDE},
        "net": {"name": "small"},
        "train": {"steps": 1000},
    }
    config = build_config(tree)
    dataset = load(config.data)
    config = fit_to_data(config, dataset)
    timer = StepTimer(config, *build_training(prepare_inputs(config, dataset, torch.device("cpu"))))
    number = 0
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            started = time.perf_counter()
            timer.step(number)
            seconds.append(time.perf_counter() - started)
            number += 1
        print(json.dumps({"seconds": statistics.median(seconds), "memory": memory_in_mb()}), flush=True)


def memory_in_mb() -> dict[str, int]:
    """Resident now, anonymous and file-backed parts of it, and the peak."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {key: int(lines[key].split()[0]) // 1024 for key in ("VmRSS", "RssAnon", "RssFile", "VmHWM")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder for data and cache; reused by the next call")
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--photos", type=int, default=3_000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run_worker(options.worker, options.folder)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    cache = options.folder / "cache"
    os.environ["UNISSL_CACHE"] = str(cache)
    large, small, photos = options.folder / "large.parquet", options.folder / "small.parquet", options.folder / "photos"
    for path, count in ((large, options.images), (small, options.small)):
        if not path.exists():
            write_parquet(path, count)
    if not photos.exists():
        write_photos(photos, options.photos)
    results: dict[str, Any] = {}
    if not list(cache.glob("parquet-*/manifest.json")):
        results["cache"] = build_with_a_kill(large, cache, options.images)
        print(json.dumps(results["cache"]), file=sys.stderr, flush=True)
        seconds = timed_load("folder", photos)
        results["photos"] = {
            "images": options.photos,
            "pixels": "640 x 480",
            "per_second": round(options.photos / seconds),
        }
    timed_load("parquet", small)
    results["training"] = train_in_turn(large, small, options.steps, options.pairs)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
